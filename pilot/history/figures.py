"""Draws figures (matplotlib, without a display) whose texts may be anything: names of scripts, metrics and files."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING

from pilot.core.errors import UserError, one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (5.4, 2.6)
"""Inches of most figures in a page."""

LABEL_MAX = 40
"""A longer label would leave no room for the curves."""

_LOOK = {"svg.hashsalt": "pilot", "svg.fonttype": "none", "font.size": 9, "text.parse_math": False}
"""The same input gives the same text, which the browser's fonts show; and a dollar sign is only that."""


def drawn(draw: Callable[[Figure], None], width: float, height: float, kind: str = "svg", dpi: float = 100) -> bytes:
    """The image that ``draw`` makes of an empty figure, in the format ``kind``; :class:`ValueError` if matplotlib does
    not know that, :class:`UserError` if it is not installed. The user's ``matplotlibrc``, and one in the current
    folder, have no effect.
    """
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UserError("figures need matplotlib: pip install 'pilot-train[plots]'") from None
    with style.context(["default", _LOOK]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # characters that its fonts lack, labels that do not fit
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        _use_plain_numbers(figure)
        image = io.BytesIO()
        figure.savefig(image, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else None)
    return image.getvalue()


def _use_plain_numbers(figure: Figure) -> None:
    """Label logarithmic axes with plain numbers: matplotlib writes powers as formulas."""
    from matplotlib.ticker import LogFormatter

    for axis in [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) if axis.get_scale() == "log"]:
        axis.set_major_formatter(LogFormatter())
        axis.set_minor_formatter(LogFormatter(labelOnlyBase=False))


def svg(draw: Callable[[Axes], None], width: float, height: float) -> str:
    """The plot of ``draw`` as an ``<svg>`` element; where that fails, a paragraph with the reason: a page is worth more
    than one of its figures.
    """
    try:
        text = drawn(lambda figure: draw(figure.subplots()), width, height).decode()
    except UserError as error:
        return f"<p>This figure is missing: {escape(str(error))}</p>"
    except Exception as error:
        return f"<p>This figure cannot be drawn: {escape(one_line(f'{type(error).__name__}: {error}'))}</p>"
    return text[text.index("<svg") :]


def label(text: str) -> str:
    """``text`` as a label: on one line, cut in the middle if it is long."""
    shown = one_line(text)
    half = LABEL_MAX // 2
    return shown if len(shown) <= LABEL_MAX else f"{shown[:half]} ... {shown[-half:]}"
