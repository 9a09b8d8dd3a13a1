"""HTML as nested calls; text is escaped unless it is already :class:`Html`."""

from html import escape

__all__ = ["Html", "join", "tag"]

_VOID = ("img", "meta", "br")


class Html(str):
    """Text that is HTML already, and is not escaped again."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | int | bool | None) -> Html:
    """An element.

    Args:
        name: Its name.
        *children: Text, which is escaped, or :class:`Html`; ``None`` is left out.
        **attributes: A trailing ``_`` is dropped (``class_``), other ``_`` become ``-``; ``None``
            and ``False`` are left out.

    Example:
        >>> tag("p", "a < b", tag("b", "!"), class_="note")
        '<p class="note">a &lt; b<b>!</b></p>'
    """
    words = [name]
    for key, value in attributes.items():
        label = key.rstrip("_").replace("_", "-")
        if value is True:
            words.append(label)
        elif value is not None and value is not False:
            words.append(f'{label}="{escape(str(value), quote=True)}"')
    opening = f"<{' '.join(words)}>"
    return Html(opening if name in _VOID else f"{opening}{join(*children)}</{name}>")


def join(*children: str | None) -> Html:
    """Siblings, escaped where they are plain text."""
    return Html(
        "".join(
            child if isinstance(child, Html) else escape(child)
            for child in children
            if child is not None
        )
    )
