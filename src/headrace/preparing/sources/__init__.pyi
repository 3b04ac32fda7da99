from headrace.preparing.sources.block import (
    BadRecord as BadRecord,
    Block as Block,
    RecordSpec as RecordSpec,
    SpanReader as SpanReader,
)
from headrace.preparing.sources.find import find_inputs as find_inputs, spool_stdin as spool_stdin
from headrace.preparing.sources.reader import open_span as open_span
from headrace.preparing.sources.source_file import (
    MAX_TASK_SPANS as MAX_TASK_SPANS,
    Format as Format,
    SampleBy as SampleBy,
    SourceFile as SourceFile,
    Span as Span,
    Task as Task,
    check_all as check_all,
    choose_task_bytes as choose_task_bytes,
    counted_from as counted_from,
    is_hashed_while_read as is_hashed_while_read,
    plan_tasks as plan_tasks,
    record_noun as record_noun,
    spans_in_words as spans_in_words,
)
