"""The design page: `python -m plateau_jax --design`.

`source` (lines to copy), `handles` (points to drag), `questions` (checks, and the field that a
message belongs to), `answers` and `forecasts` (JSON in, JSON out), `server` (HTTP), `page/` (the
page itself, without a build step; `main.js` has the curves).
"""
