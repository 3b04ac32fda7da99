"""The sample types of multi-modal training, with the names that Energon's datasets use.

An image is in the form that the decoder's options ask for, by default a torch tensor (3, H, W) float32 in [0, 1]; see
`SampleDecoder`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from headrace.samples.media.sample import Sample, sample_type

Array: TypeAlias = Any
"""A torch tensor, a NumPy array or a Pillow image, by the options of the decoder."""


@sample_type
class TextSample(Sample):
    """Plain text.

    Attributes:
        text: The text.
    """

    text: str


@sample_type
class ImageSample(Sample):
    """An image alone, for reconstruction.

    Attributes:
        image: (C, H, W).
    """

    image: Array


@sample_type
class CaptioningSample(Sample):
    """An image and its caption.

    Attributes:
        image: (C, H, W).
        caption: The caption.
    """

    image: Array
    caption: str


@sample_type
class ImageClassificationSample(Sample):
    """An image and its class.

    Attributes:
        image: (C, H, W).
        label: The number of the class, or None.
        label_name: The name of the class, or None.
    """

    image: Array
    label: int | None = None
    label_name: str | None = None


@sample_type
class InterleavedSample(Sample):
    """Images between texts, in the order of the document.

    Attributes:
        sequence: Each element is a text or an image (C, H, W).
    """

    sequence: list[Array | str]


@sample_type
class SimilarityInterleavedSample(Sample):
    """Images and texts of one document, to be aligned by their similarity.

    Attributes:
        images: Each (C, H, W).
        texts: In the order of the document.
        audio: Each (channels, samples), or None.
        video: Each (frames, C, H, W), or None.
        similarity_matrix: (images, texts) float, or None.
        matched_text_indices: For each image, the number of the text to which it belongs, or None.
    """

    images: list[Array]
    texts: list[str]
    audio: list[Array] | None = None
    video: list[Array] | None = None
    similarity_matrix: Array | None = None
    matched_text_indices: list[int] | None = None


@sample_type
class VQASample(Sample):
    """A question about an image.

    Attributes:
        image: (C, H, W).
        context: The question.
        answers: Possible answers, or None if there are none to learn from.
        answer_weights: (answers,) float, or None.
    """

    image: Array
    context: str
    answers: list[str] | None = None
    answer_weights: Array | None = None


@sample_type
class MultiChoiceVQASample(Sample):
    """A question about an image, with answers to choose from.

    Attributes:
        image: (C, H, W).
        context: The question.
        choices: The answers to choose from, or None.
        correct_choice_idx: The number of the right answer in ``choices``.
    """

    image: Array
    context: str
    choices: list[str] | None = None
    correct_choice_idx: int = 0


@sample_type
class VidQASample(Sample):
    """A question about a video.

    Attributes:
        video: An ``AVDecoder``, which reads frames and sound when they are needed.
        context: The question.
        answers: Possible answers, or None if there are none to learn from.
        answer_weights: (answers,) float, or None.
    """

    video: Any
    context: str
    answers: list[str] | None = None
    answer_weights: Array | None = None


@sample_type
class OCRSample(Sample):
    """An image of text, with the text and where it is written.

    A box is x, y, width and height in pixels, and optionally a confidence. There are as many texts of a kind as boxes.

    Attributes:
        image: (C, H, W).
        text: The whole text of the image.
        block_boxes: (blocks, 4 or 5) float, or None.
        block_classes: (blocks,) integers, or one name for each, or None.
        block_text: The text of each block, or None.
        lines_boxes: (lines, 4 or 5) float, or None.
        lines_text: The text of each line, or None.
        words_boxes: (words, 4 or 5) float, or None.
        words_text: Each word, or None.
        chars_boxes: (characters, 4 or 5) float, or None.
        chars_text: Each character, or None.
    """

    image: Array
    text: str
    block_boxes: Array | None = None
    block_classes: Array | list[str] | None = None
    block_text: list[str] | None = None
    lines_boxes: Array | None = None
    lines_text: list[str] | None = None
    words_boxes: Array | None = None
    words_text: list[str] | None = None
    chars_boxes: Array | None = None
    chars_text: list[str] | None = None


@sample_type
class VQAOCRSample(Sample):
    """A question about an image of text.

    Attributes:
        image: (C, H, W).
        context: The question.
        text: The whole text of the image.
        answers: Possible answers, or None if there are none to learn from.
        answer_weights: (answers,) float, or None.
        words_boxes: (words, 4 or 5) float: x, y, width, height[, confidence]; or None.
        words_text: Each word, or None.
    """

    image: Array
    context: str
    text: str
    answers: list[str] | None = None
    answer_weights: Array | None = None
    words_boxes: Array | None = None
    words_text: list[str] | None = None
