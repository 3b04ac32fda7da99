from headrace.samples.templates.chat_template import ChatTemplate as ChatTemplate
from headrace.samples.templates.load import special_tokens as special_tokens
from headrace.samples.templates.messages import Rendered as Rendered, TemplateSetup as TemplateSetup
from headrace.samples.templates.suite import (
    Family as Family,
    SuiteTemplate as SuiteTemplate,
    find as find,
    suite_names as suite_names,
)
