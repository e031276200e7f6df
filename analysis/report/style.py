"""The page's one style sheet: for a phone first, wider where there is room, light or dark as the reader has it.

The surprise: tables are tables only from 1000 pixels on. Below that every row is a card and every cell carries its own
heading, so nothing has to be scrolled sideways.
"""

from __future__ import annotations

CSS = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5d6675; --ground: #fff; --card: #f4f6f9; --rule: #d9dee6; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ef; --soft: #a0a8b6; --ground: #14171d; --card: #1d222b; --rule: #343b48; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 16px; max-width: 1160px; font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere;
  color: var(--ink); background: var(--ground); }
h1 { font-size: 1.5rem; margin: 0 0 4px; }
h2 { font-size: 1.25rem; margin: 36px 0 8px; }
h3 { font-size: 1rem; margin: 24px 0 8px; }
p { margin: 6px 0; }
a { color: inherit; }
nav a { margin-right: 12px; }
.soft { color: var(--soft); font-size: .875rem; }

.tiles { display: flex; flex-wrap: wrap; gap: 8px; margin: 12px 0; padding: 0; list-style: none; }
.tiles li { background: var(--card); border-radius: 8px; padding: 8px 14px; }
.tiles b { font-size: 1.25rem; display: block; }

.keep { --verdict: #1d8a5c; }
.reject { --verdict: #c43d3d; }
.inconclusive, .skipped { --verdict: #75808f; }
.invalid { --verdict: #a8701c; }
.baseline { --verdict: #2f6fc4; }
.badge { display: inline-block; border: 1.5px solid; border-radius: 99px; padding: 0 10px; justify-self: start;
  font-size: .8125rem; font-weight: 600; color: var(--verdict); }
article { background: var(--card); border-radius: 8px; border-left: 5px solid var(--verdict);
  padding: 12px 14px; margin: 10px 0; }
article header { font-weight: 600; }
.name { margin-right: 8px; }

dl { display: grid; grid-template-columns: minmax(88px, max-content) 1fr; gap: 2px 12px; margin: 8px 0 0;
  font-size: .875rem; }
dt { color: var(--soft); }
dd { margin: 0; min-width: 0; }
pre { background: var(--card); border: 1px solid var(--rule); border-radius: 6px; padding: 10px; margin: 6px 0;
  white-space: pre-wrap; overflow-wrap: anywhere; font: .8125rem/1.45 ui-monospace, monospace; }
details { border: 1px solid var(--rule); border-radius: 8px; padding: 8px 12px; margin: 8px 0; }
summary { cursor: pointer; font-weight: 600; }

.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)); gap: 24px;
  align-items: start; }
figure { margin: 0; }
figure svg { width: 100%; max-width: 520px; height: auto; display: block; }
figcaption { font-size: .8125rem; color: var(--soft); margin-top: 8px; }

table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
thead { display: none; }
tr { display: block; background: var(--card); border-radius: 8px; margin: 8px 0; padding: 8px 12px; }
td { display: grid; grid-template-columns: 120px 1fr; gap: 8px; min-width: 0; }
td::before { content: attr(data-heading); color: var(--soft); }
td:empty { display: none; }
td data, .badge { white-space: nowrap; }
@media (min-width: 1000px) {
  thead { display: table-header-group; }
  tr { display: table-row; }
  td, th { display: table-cell; padding: 4px 8px; border-bottom: 1px solid var(--rule); text-align: right;
    vertical-align: top; }
  td:empty { display: table-cell; }
  td:is(:first-child, :nth-child(2), :last-child), th:is(:first-child, :nth-child(2), :last-child) { text-align: left; }
  td:first-child { min-width: 8em; }
  td::before { content: none; }
  th { color: var(--soft); font-weight: 500; overflow-wrap: normal; }
}
"""
