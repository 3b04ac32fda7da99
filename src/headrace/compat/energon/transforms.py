"""Geometric transforms of images, merged into one: each pixel is sampled once, whatever the number of transforms.

    MergeTransform([T.RandomRotation(30), T.RandomCrop(224)])(image)
      each transform draws its parameters as torchvision does, and becomes a matrix, source -> result
      the product of the matrices is applied in one resampling

Pillow images only. Matrices map (x, y, 1) in continuous coordinates, where pixel (0, 0) has its centre at (0.5, 0.5).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.errors import ConfigError, MissingExtraError

Matrix = NDArray[Any]

Transformed = tuple[Matrix, NDArray[np.int64], Any]
"""The matrix up to here, the size (height, width) of the result, and what was drawn."""


class CustomTransform(ABC):
    """A transform of the user's, for `MergeTransform`: override ``apply_transform``."""

    @abstractmethod
    def apply_transform(self, matrix: Matrix, dst_size: NDArray[np.int64]) -> Transformed:
        """Return the matrix with this transform after it, the new size (height, width), and what was drawn."""

    @staticmethod
    def translate(x: float, y: float) -> Matrix:
        """Move to the right and down, in pixels."""
        return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]], dtype=np.float64)

    @staticmethod
    def scale(x: float, y: float) -> Matrix:
        """Multiply the axes."""
        return np.array([[x, 0, 0], [0, y, 0], [0, 0, 1]], dtype=np.float64)

    @staticmethod
    def rotate(angle: float) -> Matrix:
        """Rotate around the origin by an angle in radians, x towards y."""
        cos, sin = math.cos(angle), math.sin(angle)
        return np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]], dtype=np.float64)

    @staticmethod
    def hflip(width: float) -> Matrix:
        """Flip left and right."""
        return np.array([[-1, 0, width], [0, 1, 0], [0, 0, 1]], dtype=np.float64)

    @staticmethod
    def vflip(height: float) -> Matrix:
        """Flip top and bottom."""
        return np.array([[1, 0, 0], [0, -1, height], [0, 0, 1]], dtype=np.float64)


class MergeTransform(torch.nn.Module):
    """Several geometric transforms of torchvision, or `CustomTransform` s, as one resampling.

    Known are ``Resize``, ``CenterCrop``, ``RandomCrop``, ``RandomResizedCrop``, ``RandomHorizontalFlip``,
    ``RandomVerticalFlip``, ``RandomRotation`` and ``RandomPerspective``. Parameters are drawn as by torchvision.
    Pixels outside the image are black. The result is bilinear if any transform is not nearest.

    Args:
        transforms: at least one.

    Raises:
        ConfigError: a transform is not one of these.
        MissingExtraError: torchvision is not installed.
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        super().__init__()
        try:
            from torchvision import transforms as known
        except ImportError as error:
            raise MissingExtraError("MergeTransform needs torchvision: pip install torchvision") from error
        self._known: Any = known
        self.transforms = list(transforms)
        for one in self.transforms:
            if not isinstance(one, CustomTransform) and not hasattr(self, f"_{type(one).__name__}"):
                raise ConfigError(
                    f"MergeTransform: {type(one).__name__} is not one of Resize, CenterCrop, RandomCrop,"
                    " RandomResizedCrop, RandomHorizontalFlip, RandomVerticalFlip, RandomRotation, RandomPerspective;"
                    " apply it by itself, or derive a CustomTransform"
                )

    def forward(self, image: Any) -> Any:
        """Return the transformed Pillow image. Raises ConfigError for anything else."""
        from PIL import Image

        if not isinstance(image, Image.Image):
            raise ConfigError(
                f"MergeTransform transforms Pillow images, found {image!r:.80}; decode with image_decode='pil'"
            )
        matrix: Matrix = np.eye(3)
        size = np.array([image.height, image.width], dtype=np.int64)
        for one in self.transforms:
            of = one.apply_transform if isinstance(one, CustomTransform) else self._by(one)
            matrix, size, _ = of(matrix, size)
        inverse = np.linalg.inv(matrix)
        inverse /= inverse[2, 2]
        how = Image.Resampling.BILINEAR if any(map(self._is_smooth, self.transforms)) else Image.Resampling.NEAREST
        to = (int(size[1]), int(size[0]))
        if not inverse[2, :2].any():
            return image.transform(to, Image.Transform.AFFINE, inverse.ravel()[:6].tolist(), how)
        return image.transform(to, Image.Transform.PERSPECTIVE, inverse.ravel()[:8].tolist(), how)

    def _by(self, one: Any) -> Any:
        function = getattr(self, f"_{type(one).__name__}")
        return lambda matrix, size: function(one, matrix, size)

    def _is_smooth(self, one: Any) -> bool:
        mode = getattr(one, "interpolation", None)
        return mode is not None and mode is not self._known.InterpolationMode.NEAREST

    @staticmethod
    def _like(size: NDArray[np.int64]) -> Any:
        """An image of this size, for functions that draw parameters."""
        from PIL import Image

        return Image.new("1", (int(size[1]), int(size[0])))

    def _Resize(self, one: Any, matrix: Matrix, size: NDArray[np.int64]) -> Transformed:  # noqa: N802
        wanted = one.size if isinstance(one.size, int) else list(one.size)
        if isinstance(wanted, list) and len(wanted) == 2:
            height, width = wanted
        else:
            compute = self._known.functional._compute_resized_output_size
            height, width = compute(
                (int(size[0]), int(size[1])), [wanted] if isinstance(wanted, int) else wanted, one.max_size
            )
        scaled = CustomTransform.scale(width / size[1], height / size[0])
        return scaled @ matrix, np.array([height, width], dtype=np.int64), (height, width)

    def _CenterCrop(self, one: Any, matrix: Matrix, size: NDArray[np.int64]) -> Transformed:  # noqa: N802
        height, width = one.size
        left, top = max(0, (width - int(size[1])) // 2), max(0, (height - int(size[0])) // 2)
        padded = [max(height, int(size[0])), max(width, int(size[1]))]
        top -= round((padded[0] - height) / 2.0)
        left -= round((padded[1] - width) / 2.0)
        return CustomTransform.translate(left, top) @ matrix, np.array([height, width], dtype=np.int64), (left, top)

    def _RandomCrop(self, one: Any, matrix: Matrix, size: NDArray[np.int64]) -> Transformed:  # noqa: N802
        if one.padding is not None or (one.padding_mode != "constant" or one.fill not in (0, (0, 0, 0))):
            raise ConfigError("MergeTransform: RandomCrop with padding or another fill is not known; pad before")
        height, width = one.size
        if one.pad_if_needed:
            x, y = max(0, width - int(size[1])), max(0, height - int(size[0]))
            matrix = CustomTransform.translate(x, y) @ matrix
            size = size + 2 * np.array([y, x], dtype=np.int64)
        top, left, height, width = one.get_params(self._like(size), one.size)
        return CustomTransform.translate(-left, -top) @ matrix, np.array([height, width], dtype=np.int64), (top, left)

    def _RandomResizedCrop(self, one: Any, matrix: Matrix, size: NDArray[np.int64]) -> Transformed:  # noqa: N802
        top, left, height, width = one.get_params(self._like(size), one.scale, one.ratio)
        moved = CustomTransform.translate(-left, -top)
        scaled = CustomTransform.scale(one.size[1] / width, one.size[0] / height)
        return scaled @ moved @ matrix, np.array(one.size, dtype=np.int64), (top, left, height, width)

    def _RandomHorizontalFlip(self, one: Any, matrix: Matrix, size: NDArray[np.int64]) -> Transformed:  # noqa: N802
        flips = bool(torch.rand(1) < one.p)
        return (CustomTransform.hflip(float(size[1])) @ matrix if flips else matrix), size, flips

    def _RandomVerticalFlip(self, one: Any, matrix: Matrix, size: NDArray[np.int64]) -> Transformed:  # noqa: N802
        flips = bool(torch.rand(1) < one.p)
        return (CustomTransform.vflip(float(size[0])) @ matrix if flips else matrix), size, flips

    def _RandomRotation(self, one: Any, matrix: Matrix, size: NDArray[np.int64]) -> Transformed:  # noqa: N802
        angle = one.get_params(one.degrees)
        height, width = int(size[0]), int(size[1])
        center = (width / 2.0, height / 2.0) if one.center is None else tuple(one.center)
        about = CustomTransform.translate(*center)
        # Pillow rotates counter-clockwise, and y points down.
        forward = about @ CustomTransform.rotate(-math.radians(angle)) @ np.linalg.inv(about)
        if one.expand:
            corners = forward @ np.array([[0, width, width, 0], [0, 0, height, height], [1, 1, 1, 1]])
            new = [math.ceil(max(axis)) - math.floor(min(axis)) for axis in np.round(corners[:2], 9)]
            forward = CustomTransform.translate((new[0] - width) / 2.0, (new[1] - height) / 2.0) @ forward
            size = np.array([new[1], new[0]], dtype=np.int64)
        return forward @ matrix, size, angle

    def _RandomPerspective(self, one: Any, matrix: Matrix, size: NDArray[np.int64]) -> Transformed:  # noqa: N802
        if not torch.rand(1) < one.p:
            return matrix, size, None
        height, width = int(size[0]), int(size[1])
        begins, ends = one.get_params(width, height, one.distortion_scale)
        coefficients = self._known.functional._get_perspective_coeffs(begins, ends)
        inverse = np.array([*coefficients, 1.0]).reshape(3, 3)
        return np.linalg.inv(inverse) @ matrix, size, (begins, ends)
