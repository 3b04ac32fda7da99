from headrace.samples.media.decoding.decoder import SampleDecoder as SampleDecoder
