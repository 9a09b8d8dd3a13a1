"""The page's style sheet: one column of calm text, boxes that scroll, light, dark and print."""

from toolkit.report.looks import GRID, INK, MUTED, PAPER, SERIES

__all__ = ["CSS"]

_LIGHT = f"--card: {PAPER}; --ink: {INK}; --muted: {MUTED}; --rule: {GRID}; " + " ".join(
    f"--series-{i}: {color};" for i, color in enumerate(SERIES)
)
CSS = (
    f":root {{ {_LIGHT} }}"
    + """
:root {
  color-scheme: light dark;
  --page: #f6f7f8;
  --supported: #00734f; --refuted: #b23a00; --inconclusive: #7a5c00; --not-tested: #56616c;
  --supported-tint: #e4f4ee; --refuted-tint: #fbeae1; --inconclusive-tint: #fbf3dc;
  --not-tested-tint: #eceff1;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #12171b; --card: #1a2126; --ink: #e6eaed; --muted: #9aa7b1; --rule: #313b43;
    --series-0: #9fabb6; --series-1: #ff8a3d; --series-2: #4da8e0; --series-3: #2fc299;
    --series-4: #dd97bf; --series-5: #f0b840; --series-6: #7cc8f2;
    --supported: #45d0a4; --refuted: #ff9a63; --inconclusive: #e6c35c; --not-tested: #aab5be;
    --supported-tint: #14322a; --refuted-tint: #3a2318; --inconclusive-tint: #352c14;
    --not-tested-tint: #262f36;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink); line-height: 1.55;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans",
    Arial, sans-serif;
  font-size: 16px; overflow-wrap: anywhere;
}
header, main, footer { max-width: 1120px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 44px; padding-bottom: 8px; }
h1 { font-size: clamp(1.6rem, 3.4vw, 2.2rem); line-height: 1.15; letter-spacing: -0.02em;
  margin: 0 0 12px; max-width: 34ch; text-wrap: balance; overflow-wrap: break-word; }
h2 { font-size: 1.32rem; letter-spacing: -0.01em; margin: 0 0 4px; line-height: 1.25; }
h3 { font-size: 1rem; margin: 28px 0 2px; }
p { margin: 0 0 12px; max-width: 68ch; }
.eyebrow { color: var(--muted); font-size: 0.82rem; letter-spacing: 0.04em; margin: 0 0 10px; }
.lead { font-size: 1.08rem; }
.paper, .note, figcaption { color: var(--muted); font-size: 0.9rem; }
.facts { display: flex; flex-wrap: wrap; gap: 6px 28px; list-style: none; padding: 0;
  margin: 22px 0 0; color: var(--muted); font-size: 0.92rem; }
.facts b { color: var(--ink); font-size: 1.08rem; font-variant-numeric: tabular-nums; }
section { margin: 52px 0 0; }
.cards, .figures { display: grid; gap: 16px; margin: 16px 0 0; }
.cards { grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.figures { grid-template-columns: repeat(auto-fit, minmax(min(100%, 380px), 1fr));
  align-items: start; }
.figures.small { grid-template-columns: repeat(auto-fill, minmax(min(100%, 240px), 1fr)); }
.card, figure, .scroll, .sheet {
  background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
}
.card { padding: 18px 20px; border-left: 5px solid var(--tone); min-width: 0; }
.tally { display: flex; flex-wrap: wrap; gap: 8px; margin: 18px 0 0; max-width: none; }
.verdict { display: inline-block; background: var(--tint); color: var(--tone);
  font-weight: 700; font-size: 0.95rem; border-radius: 99px; padding: 3px 13px; }
.card h3 { margin: 10px 0 8px; font-size: 1.06rem; line-height: 1.4; }
.card ul { margin: 0 0 10px; padding: 0; list-style: none; font-size: 0.92rem;
  font-variant-numeric: tabular-nums; }
.card li { padding: 2px 0; }
.card .from { color: var(--muted); font-size: 0.85rem; margin: 0; }
.supported { --tone: var(--supported); --tint: var(--supported-tint); }
.refuted { --tone: var(--refuted); --tint: var(--refuted-tint); }
.inconclusive { --tone: var(--inconclusive); --tint: var(--inconclusive-tint); }
.not-tested { --tone: var(--not-tested); --tint: var(--not-tested-tint); }
figure { margin: 0; padding: 14px 14px 10px; min-width: 0; }
figure svg { display: block; width: 100%; max-width: 450px; height: auto; margin: 0 auto; }
figure svg text { font-family: inherit !important; }
.small figure svg { max-width: 300px; }
figcaption { margin-top: 8px; }
.scroll { overflow-x: auto; margin: 16px 0 0; }
.scroll:focus-visible { outline: 2px solid var(--series-2); }
table { border-collapse: collapse; width: 100%; font-size: 0.92rem; }
th, td { padding: 9px 14px; text-align: left; vertical-align: top; overflow-wrap: normal; }
thead th { color: var(--muted); font-weight: 600; font-size: 0.84rem; white-space: nowrap;
  border-bottom: 1px solid var(--rule); }
tbody th { font-weight: 600; white-space: nowrap; position: sticky; left: 0;
  background: var(--card); }
tbody tr + tr > * { border-top: 1px solid var(--rule); }
.numbers td, .numbers thead th + th { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.worst { color: var(--refuted); }
.settings td { font-size: 0.86rem; max-width: 60ch; overflow-wrap: break-word; }
.settings tbody th { font-weight: 500; max-width: 42vw; white-space: normal;
  overflow-wrap: break-word; }
.pairs tbody th { width: 1%; }
.same { color: var(--muted); }
.other { font-weight: 600; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace;
  font-size: 0.86em; }
pre { overflow-x: auto; margin: 12px 0 0; padding: 14px; background: var(--card);
  border: 1px solid var(--rule); border-radius: 10px; overflow-wrap: normal; }
summary { cursor: pointer; font-weight: 600; margin-top: 16px; }
.sheet { padding: 14px 16px; min-width: 0; }
.sheet h4 { margin: 14px 0 8px; font-size: 0.92rem; font-weight: 600; }
.sheet h4:first-child { margin-top: 0; }
.sheet img { display: block; max-width: 100%; height: auto; image-rendering: pixelated; }
footer { margin-top: 60px; padding-bottom: 48px; color: var(--muted); font-size: 0.86rem; }
@media (max-width: 520px) {
  header { padding-top: 32px; }
  header, main, footer { padding-left: 14px; padding-right: 14px; }
  section { margin-top: 40px; }
  th, td { padding: 8px 10px; }
  .numbers tbody th { max-width: 38vw; overflow: hidden; text-overflow: ellipsis; }
  figure { padding: 10px 8px 8px; }
}
@media print {
  :root { color-scheme: light; --page: #ffffff; }
  body { font-size: 10.5pt; }
  header { padding-top: 0; }
  .card, figure, .sheet, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .scroll { overflow: visible; border: 0; }
  .scroll table { font-size: 7.5pt; }
  .scroll th, .scroll td { padding: 3px 5px; white-space: normal !important; position: static;
    font-size: inherit !important; overflow-wrap: anywhere !important; }
  .figures { grid-template-columns: 1fr 1fr; }
  .figures.small { grid-template-columns: 1fr 1fr 1fr; }
  details { display: none; }
}
"""
)
