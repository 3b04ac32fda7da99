from headrace.compat import astrai as astrai, energon as energon, megatron as megatron, torchtune as torchtune
