"""What a study found, on one page and on the terminal, from the record of its runs alone."""

from toolkit.report.page import write_report
from toolkit.report.terminal import terminal_table

__all__ = ["terminal_table", "write_report"]
