"""The design page: `python -m plateau_jax --design`.

`code_snippets` (lines to copy), `handles` (points to drag), `answers` (JSON in, JSON out), `server`
(HTTP), `page/` (the page itself, without a build step; `main.js` has the curves). `.ci/page/check`
checks the page, with the types of `types.d.ts`.

Questions come from the page, so only what a user types or opens is checked: curves and peaks. A
malformed question is a bug, with a traceback in the terminal.
"""
