from headrace.inspect.answers import (
    Answer as Answer,
    Checked as Checked,
    Report as Report,
    check_fit as check_fit,
    check_quarantine as check_quarantine,
    kind_of as kind_of,
)
from headrace.inspect.blocks import (
    Block as Block,
    Pairs as Pairs,
    Tabular as Tabular,
    Title as Title,
    Titled as Titled,
)
from headrace.inspect.description import (
    Description as Description,
    PackFigures as PackFigures,
)
from headrace.inspect.kept import KeptVerdict as KeptVerdict, MeasuredDescription as MeasuredDescription
from headrace.inspect.metadataset import MetadatasetDescription as MetadatasetDescription, MixVerdict as MixVerdict
from headrace.inspect.origins import (
    DocumentOrigins as DocumentOrigins,
    SampleOrigins as SampleOrigins,
    where as where,
    with_inputs as with_inputs,
)
from headrace.inspect.questions import (
    CHECK_FITS as CHECK_FITS,
    PREVIEW_FITS as PREVIEW_FITS,
    CheckOptions as CheckOptions,
    check as check,
    describe as describe,
    open_preview as open_preview,
    preview as preview,
)
from headrace.inspect.rendering import render as render
from headrace.inspect.run_files import (
    ChangeOptions as ChangeOptions,
    EditOptions as EditOptions,
    ToldChange as ToldChange,
    ToldFile as ToldFile,
    TraceOptions as TraceOptions,
    account_blocks as account_blocks,
    edit_lines as edit_lines,
    tell_change as tell_change,
    tell_run_file as tell_run_file,
)
from headrace.inspect.sample_checks import (
    SampleCheck as SampleCheck,
    SampleVerdict as SampleVerdict,
    leave_out_bad as leave_out_bad,
)
from headrace.inspect.sample_description import SampleDescription as SampleDescription, listed as listed
from headrace.inspect.sample_preview import (
    MixPreview as MixPreview,
    OpenPreview as OpenPreview,
    SamplePreview as SamplePreview,
    look_at_sample as look_at_sample,
)
from headrace.inspect.samples import (
    SampleOptions as SampleOptions,
    find_part as find_part,
    need_samples as need_samples,
    read_part as read_part,
)
from headrace.inspect.shown import (
    Preview as Preview,
    PreviewOptions as PreviewOptions,
    Rendering as Rendering,
)
from headrace.inspect.store_checks import Verdict as Verdict
from headrace.inspect.terminal import Style as Style, drawer as drawer, lines as lines
