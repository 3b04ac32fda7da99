from headrace.samples.conversation import (
    Completion as Completion,
    Conversation as Conversation,
    Group as Group,
    Message as Message,
    Preference as Preference,
    Prompt as Prompt,
    Text as Text,
    TrainSpan as TrainSpan,
)
