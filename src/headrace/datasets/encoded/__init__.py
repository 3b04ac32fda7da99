"""Media samples that go through a task encoder.

    fixed       EncodedDataset     one output for each sample
    measured    MeasuredDataset    filtered, grouped and packed by facts that `measure` stored
    framed      Framed             none, one or several outputs; filtered, grouped and packed while the run goes on
                  --> FramedRun        adds order, lanes and batches
                  --> UnitReader       makes units in one process

samples    `SampleEncoder` makes the outputs of a sample for all three, and applies the error policy; packs and batches;
           the restore keys of outputs and packs
framed     what outputs are made into, for measured sources, too, and which hooks that needs
"""

from headrace._lazy import face

__getattr__, __dir__, __all__ = face(__name__)
