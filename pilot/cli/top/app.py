"""The screen of ``pilot top``: polls the coordinator in a thread and shows its answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.coordinate import Coordinate
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, RichLog, Static

from pilot.cli.control import pilots_of, scaled_text
from pilot.cli.top.view import History, about, event_line, headline, strip, trainer_cells
from pilot.core.errors import PilotError, UserError
from pilot.core.trainer.trainer import ENDED
from pilot.protocol.node_names import shortened
from pilot.protocol.pool_status import PoolStatus, TrainerStatus

if TYPE_CHECKING:
    from pilot.protocol.pool_client import PoolClient

COLUMNS = ("trainer", "state", "nodes", "epochs", "samples/s", "", "loss", "", "left")
COLUMN_S = 2.0
LOG_LINES = 200


class Page(ModalScreen[None]):
    """Text on the full screen, until a key closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter", "close", "Close")]

    def __init__(self, title: str, lines: list[str]) -> None:
        super().__init__()
        self._title = title
        self._lines = lines

    def compose(self) -> ComposeResult:
        """The text, scrolled to its end."""
        yield Static(Text(self._title, style="bold"))
        yield RichLog(id="page", wrap=True)
        yield Footer()

    def on_mount(self) -> None:
        """Fill the log: it can only be written to once it has a size."""
        page = self.query_one("#page", RichLog)
        page.border_title = self._title
        for line in self._lines:
            page.write(Text(line))
        page.focus()

    def action_close(self) -> None:
        """Return to the pool."""
        self.dismiss()


class Entry(ModalScreen[str | None]):
    """A line of input; None if the user presses Escape."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "leave", "Cancel")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """The question and an input field."""
        yield Static(Text(self._text, style="bold"), id="question")
        yield Input(id="entry")
        yield Footer()

    def on_input_submitted(self, entered: Input.Submitted) -> None:
        """Return to the pool with what was typed."""
        self.dismiss(entered.value.strip())

    def action_leave(self) -> None:
        """Return to the pool without an answer."""
        self.dismiss(None)


class Top(App[None]):
    """The application; see the module.

    Parameters
    ----------
    pool : the client that is polled
    log_of : returns the newest lines of a trainer's log
    every_s : seconds between polls
    """

    CSS = """
    #headline { height: auto; max-height: 5; }
    #trainers { height: 2fr; min-height: 4; }
    #selected { height: auto; max-height: 4; }
    #nodes { height: 1fr; min-height: 3; overflow-y: auto; }
    #feed { height: 1fr; min-height: 3; scrollbar-size: 1 1; }
    #nodes, #feed { border-top: solid $primary; }
    Page, Entry { align: center middle; background: $background; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("l", "log", "Log"),
        ("e", "explain", "Explain"),
        ("s", "scale", "Scale"),
        ("x", "cancel", "Cancel"),
        ("q", "quit", "Quit"),
    ]

    def __init__(self, pool: PoolClient, log_of: Callable[[str, int], list[str]], every_s: float) -> None:
        super().__init__()
        self._pool = pool
        self._log_of = log_of
        self._every_s = every_s
        self.history = History(COLUMN_S)
        self._status: PoolStatus | None = None

    def compose(self) -> ComposeResult:
        """From top to bottom: the pool, its trainers, its nodes, the events."""
        yield Static("asking the coordinator ...", id="headline")
        table: DataTable[Text | str] = DataTable(id="trainers", cursor_type="row", zebra_stripes=False, cell_padding=0)
        yield table
        yield Static(id="selected")
        yield Static(id="nodes")
        yield RichLog(id="feed", max_lines=LOG_LINES, wrap=False)
        yield Footer()

    def on_mount(self) -> None:
        """Poll now, and then periodically."""
        table = self._table
        for index, name in enumerate(COLUMNS):
            table.add_column(f" {name}" if index else name, key=str(index))
        self.query_one("#nodes").border_title = f"nodes, {COLUMN_S:g} s a column"
        self.query_one("#feed").border_title = "events"
        table.focus()
        self.ask()
        self.set_interval(self._every_s, self.ask)

    @property
    def _table(self) -> DataTable[Text | str]:
        return self.query_one("#trainers", DataTable)

    # --- polling: a coordinator that does not answer never freezes the screen ----------------------------------------

    @work(thread=True, exclusive=True, group="status")
    def ask(self) -> None:
        """Poll once."""
        try:
            status = self._pool.status()
        except (PilotError, UserError) as error:
            text = Text(f"no answer: {error}", style="bold red")
            self.call_from_thread(self.query_one("#headline", Static).update, text)
        else:
            self.call_from_thread(self.show_status, status)

    @work(thread=True)
    def _page(self, title: str, lines_of: Callable[[], list[str]]) -> None:
        try:
            lines = lines_of()
        except (PilotError, UserError) as error:
            lines = [str(error)]
        self.call_from_thread(self.push_screen, Page(title, lines))

    @work(thread=True)
    def _do(self, what: Callable[[], str]) -> None:
        """Do ``what`` and show the text that it returns."""
        try:
            text = what()
        except (PilotError, UserError) as error:
            text = str(error)
        self.call_from_thread(self.notify, text, markup=False)

    # --- showing -----------------------------------------------------------------------------------------------------

    def show_status(self, status: PoolStatus) -> None:
        """Show an answer."""
        self._status = status
        new = self.history.note(status)
        self.query_one("#headline", Static).update(headline(status))
        self._show_trainers(status.trainers)
        self._show_selected()
        self._show_nodes([trainer.trainer for trainer in status.trainers])
        feed = self.query_one("#feed", RichLog)
        for change in new:
            feed.write(event_line(change))

    def _show_trainers(self, trainers: list[TrainerStatus]) -> None:
        """Trainers that have not ended come first; the cursor stays on its trainer."""
        table, names = self._table, [trainer.trainer for trainer in trainers]
        order = [trainer.trainer for trainer in sorted(trainers, key=lambda trainer: trainer.phase in ENDED)]
        if [row.key.value for row in table.ordered_rows] != order:
            chosen = self.selected.trainer if self.selected is not None else None
            table.clear()
            for name in order:
                table.add_row(*[""] * len(COLUMNS), key=name)
            if chosen in order:
                table.move_cursor(row=order.index(chosen))
        for trainer in trainers:
            for index, cell in enumerate(trainer_cells(trainer, self.history.curves[trainer.trainer], names)):
                table.update_cell(trainer.trainer, str(index), cell, update_width=True)

    def on_data_table_row_highlighted(self) -> None:
        """The cursor moved."""
        self._show_selected()

    def _show_selected(self) -> None:
        trainer = self.selected
        self.query_one("#selected", Static).update("" if trainer is None else about(trainer))

    def _show_nodes(self, trainers: list[str]) -> None:
        widget, rows = self.query_one("#nodes", Static), self.history.rows
        label = max((len(shortened(node)) for node in rows), default=0)
        width = max(1, widget.size.width - label - 2)
        text = Text(no_wrap=True)
        for node, row in rows.items():
            text.append(f"{shortened(node):<{label}} ").append_text(strip(row, trainers, width)).append("\n")
        widget.update(text)

    # --- keys --------------------------------------------------------------------------------------------------------

    @property
    def selected(self) -> TrainerStatus | None:
        """The trainer under the cursor."""
        table = self._table
        if self._status is None or not table.is_valid_row_index(table.cursor_row):
            return None
        name = table.coordinate_to_cell_key(Coordinate(table.cursor_row, 0)).row_key.value
        return next((trainer for trainer in self._status.trainers if trainer.trainer == name), None)

    def action_log(self) -> None:
        """The newest lines that the trainer's script wrote."""
        if (trainer := self.selected) is not None:
            name = trainer.trainer
            self._page(f"log of {name}", lambda: self._log_of(name, LOG_LINES))

    def action_explain(self) -> None:
        """Why the trainer has its nodes."""
        if (trainer := self.selected) is not None:
            name = trainer.trainer
            self._page(
                f"why {name} has its nodes", lambda: [shortened(line) for line in self._pool.explain(name).sentences]
            )

    def action_cancel(self) -> None:
        """Cancel the trainer, after confirmation."""
        trainer = self.selected
        if trainer is None or trainer.phase in ENDED:
            return
        name = trainer.trainer

        def entered(answer: str | None) -> None:
            if answer == "y":
                self._do(lambda: f"{name} is {self._pool.cancel(name).phase}")

        self.push_screen(Entry(f"Cancel {name} now? (y or n)"), entered)

    def action_scale(self) -> None:
        """Change the number of pilots."""

        def entered(pilots: str | None) -> None:
            if pilots:
                self._do(lambda: scaled_text(self._pool.scale(*pilots_of(pilots.split()))))

        wanted = self._status.keeper.wanted_nodes if self._status is not None else "-"
        self.push_screen(Entry(f"How many pilots to keep (a number, auto, or TYPE:NUMBER)? Now: {wanted}"), entered)
