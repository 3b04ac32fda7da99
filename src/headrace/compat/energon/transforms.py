"""Geometric transforms of images, merged into one: each pixel is sampled once, whatever the number of transforms.

    MergeTransform([T.RandomRotation(30), T.RandomPerspective()])(image)
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


class MergeTransform(torch.nn.Module):
    """Several `CustomTransform` s, or torchvision's ``RandomRotation`` and ``RandomPerspective``, as one resampling.

    Parameters are drawn as by torchvision. Pixels outside the image are black. The result is bilinear if any transform
    is not nearest.

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
                    f"MergeTransform: {type(one).__name__} is not one of RandomRotation, RandomPerspective; apply it by"
                    " itself, or derive a CustomTransform"
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
