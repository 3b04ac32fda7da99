"""The sample types of multi-modal training, by the names that Energon's datasets use.

An image is what the decoder was asked for, by default a torch tensor (3, H, W) float32 in [0, 1].
See ``SampleDecoder``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from headrace.samples.media.sample import Sample, sample_type

Array: TypeAlias = Any
"""A torch tensor, a NumPy array or a Pillow image, as the decoder was told."""


@sample_type
class TextSample(Sample):
    """Plain text.

    Attributes:
        text: the text.
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
    """An image and what is to be said of it.

    Attributes:
        image: (C, H, W).
        caption: the caption.
    """

    image: Array
    caption: str


@sample_type
class ImageClassificationSample(Sample):
    """An image and its class.

    Attributes:
        image: (C, H, W).
        label: number of the class, or None.
        label_name: name of the class, or None.
    """

    image: Array
    label: int | None = None
    label_name: str | None = None


@sample_type
class InterleavedSample(Sample):
    """Images between texts, in the order of the document.

    Attributes:
        sequence: each element a text, or an image (C, H, W).
    """

    sequence: list[Array | str]


@sample_type
class SimilarityInterleavedSample(Sample):
    """Images and texts of one document, whose alignment is still to be found from their similarity.

    Attributes:
        images: each (C, H, W).
        texts: in the order of the document.
        audio: each (channels, samples), or None.
        video: each (frames, C, H, W), or None.
        similarity_matrix: (images, texts) float, or None.
        matched_text_indices: for each image, the number of the text that it belongs to, or None.
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
        context: the question.
        answers: possible answers; None where there are none to learn from.
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
        context: the question.
        choices: the answers to choose from, or None.
        correct_choice_idx: number of the right one in ``choices``.
    """

    image: Array
    context: str
    choices: list[str] | None = None
    correct_choice_idx: int = 0


@sample_type
class VidQASample(Sample):
    """A question about a video.

    Attributes:
        video: an ``AVDecoder``, from which frames and sound are read when they are wanted.
        context: the question.
        answers: possible answers; None where there are none to learn from.
        answer_weights: (answers,) float, or None.
    """

    video: Any
    context: str
    answers: list[str] | None = None
    answer_weights: Array | None = None


@sample_type
class OCRSample(Sample):
    """An image of text, and what is written where.

    A box is x, y, width, height in pixels, and optionally a confidence. Texts of one kind are as many as its boxes.

    Attributes:
        image: (C, H, W).
        text: all text of the image.
        block_boxes: (blocks, 4 or 5) float, or None.
        block_classes: (blocks,) integers, or a name each, or None.
        block_text: the text of each block, or None.
        lines_boxes: (lines, 4 or 5) float, or None.
        lines_text: the text of each line, or None.
        words_boxes: (words, 4 or 5) float, or None.
        words_text: each word, or None.
        chars_boxes: (characters, 4 or 5) float, or None.
        chars_text: each character, or None.
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
        context: the question.
        text: all text of the image.
        answers: possible answers; None where there are none to learn from.
        answer_weights: (answers,) float, or None.
        words_boxes: (words, 4 or 5) float: x, y, width, height[, confidence]; or None.
        words_text: each word, or None.
    """

    image: Array
    context: str
    text: str
    answers: list[str] | None = None
    answer_weights: Array | None = None
    words_boxes: Array | None = None
    words_text: list[str] | None = None
