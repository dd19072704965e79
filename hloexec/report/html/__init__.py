"""Results as pages of HTML, and the same tables and plots in notebooks.

`write_html` writes a page. What a page says is the terminal's view (`hloexec.report`); pages add plots, and the
module's instructions. It needs `hloexec[report]`: Jinja2 and Matplotlib, which are imported where they are used.
"""

from hloexec.report.html.building import Subject
from hloexec.report.html.rendering import require_page, write_html, write_page

__all__ = ["Subject", "require_page", "write_html", "write_page"]
