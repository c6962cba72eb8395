// The names of the curves on the picture, each next to its line where the other lines leave room.

import { svgElement } from "./elements.js";

const canvas = document.createElement("canvas").getContext("2d");  // to measure texts
const COLUMN = 4;  // pixels
const HEIGHT = 16, GAP = 5, MARGIN = 4;
const ENOUGH = 24;  // pixels to the nearest line, beyond which more room is no better

// lines: {name, colour, points: [[x, y], …] from left to right}; box: {left, right, top, bottom} of the names;
// marks: the points [x, y] of handles, which names must not cover. Where there is no room, a curve gets no name.
export function lineNames(lines, box, marks) {
  const columns = Math.max(0, Math.floor((box.right - box.left) / COLUMN));
  const ranges = lines.map(({ points }) => rangesOf(points, box.left, columns));
  const taken = marks.map(([x, y]) => ({ left: x - 16, right: x + 16, top: y - 9, bottom: y + 9 }));
  canvas.font = `600 12px ${getComputedStyle(document.body).fontFamily}`;  // as in page.css
  return lines.map((line, index) => {
    const others = ranges.filter((_, other) => other !== index);
    const place = bestPlace(canvas.measureText(line.name).width + 2, ranges[index], others, taken, box, columns);
    if (!place) return null;
    taken.push(place);
    const text = svgElement("text", { class: `line-name colour-${line.colour}`, x: place.left, y: place.bottom - 4 });
    text.textContent = line.name;
    return text;
  }).filter(Boolean);
}

function bestPlace(width, own, others, taken, box, columns) {
  const covered = Math.ceil(width / COLUMN);
  let best = null;
  for (let first = 0; first + covered < columns; first += 2) {
    const range = rangeOver(own, first, covered);
    if (!range) continue;
    const left = box.left + first * COLUMN;
    for (const top of [range[0] - GAP - HEIGHT, range[1] + GAP]) {
      const place = { left, right: left + width, top, bottom: top + HEIGHT };
      if (top < box.top || place.bottom > box.bottom || taken.some((other) => overlap(place, other))) continue;
      const rooms = others.map((other) => rangeOver(other, first, covered)).filter(Boolean)
        .map(([low, high]) => Math.max(low - place.bottom, place.top - high));
      const room = Math.min(ENOUGH, ...rooms);
      const score = room - (range[1] - range[0]) / 2;  // prefer flat stretches
      if (room >= MARGIN && (best === null || score > best.score)) best = { ...place, score };
    }
  }
  return best;
}

const overlap = (one, other) => one.left < other.right + MARGIN && other.left < one.right + MARGIN &&
  one.top < other.bottom && other.top < one.bottom;

// The lowest and the highest y of a line in some columns; null where it has none.
function rangeOver(ranges, first, count) {
  const found = ranges.slice(first, first + count).filter(Boolean);
  return found.length ? [Math.min(...found.map(([low]) => low)), Math.max(...found.map(([, high]) => high))] : null;
}

// The lowest and the highest y of a line in each column.
function rangesOf(points, left, columns) {
  const ranges = Array(columns).fill(null);
  const add = (x, y) => {
    const column = Math.floor((x - left) / COLUMN);
    if (column < 0 || column >= columns) return;
    const [low, high] = ranges[column] ?? [y, y];
    ranges[column] = [Math.min(low, y), Math.max(high, y)];
  };
  points.forEach(([x, y], index) => {
    const [before, yBefore] = points[index - 1] ?? [x, y];
    for (let between = Math.max(before, left); between < Math.min(x, left + columns * COLUMN); between += COLUMN / 2) {
      add(between, yBefore + ((y - yBefore) * (between - before)) / (x - before));
    }
    add(x, y);
  });
  return ranges;
}
