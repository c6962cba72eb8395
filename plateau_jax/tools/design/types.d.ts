// What the page and its server (answers.py) exchange, and what the page keeps, for the type check of
// the page's JavaScript. No program reads this file.

/** Keys and indices from an entry to a part of it, such as ["curve", "plateaus", 0, 1]. */
type Path = (string | number)[];

/** The value of a field: a number or a shape, or whatever the user has typed instead. */
type Typed = any;

/** A curve as `Curve.to_dict` describes it. It has the arguments of its kind only. */
interface Curve {
  kind: "plateau" | "staged" | "cooldown" | "then" | "part" | "scaled";
  total_steps: Typed;
  warmup_steps: Typed;
  warmup_shape: Typed;
  init_lr_ratio: Typed;
  decay_shape: Typed;
  min_lr_ratio: Typed;
  plateaus: [start: Typed, duration: Typed][];
  absolute_plateaus: [start: Typed, length: Typed][];
  start: Typed;
  stages: Stage[];
  /** The curve that this one is derived from. */
  curve: Curve;
  /** The curve that continues it. */
  other: Curve;
  scale: Typed;
  at: Typed;
  steps: Typed;
  to: Typed;
  shape: Typed;
  stop: Typed;
  pairs: [threshold: number, batch: number][];
  unit: Typed;
  reference: Typed;
  exponent: Typed;
}

type Stage = [steps: Typed, to: Typed, shape: Typed];

/** A curve with its peak and name: what the user edits, and what Save downloads. */
interface SavedCurve {
  name: string;
  peak: Typed;
  curve: Curve;
}

interface Entry extends SavedCurve {
  id: number;
  /** The index of its look. */
  colour: number;
  isHidden?: boolean;
}

/** An entry on the picture, which draws its description. */
interface VisibleEntry extends Entry {
  isSelected: boolean;
  answer: Description;
}

interface State {
  /** The id of the selected entry. */
  selected: number;
  curves: Entry[];
}

/** A fault or advice, with the path of its field. */
interface Message {
  message: string;
  path: Path;
}

/** All that the page shows of a curve. */
interface Description {
  curve: Curve;
  peak: number;
  total: number;
  warmup: Warmup;
  steps: number[];
  levels: number[];
  /** The name, the first step and the first step after each warmup and plateau. */
  spans: [name: string, begin: number, after: number][];
  /** The header and the rows of the table of segments. */
  segments: string[][];
  handles: Handle[];
  optax: string;
  torch: string;
  json: string;
  advice: Message[];
}

interface Warmup {
  warmup_steps: number;
  warmup_shape?: string;
  init_lr_ratio?: number;
}

/** A point on the picture, and the number that moves with it: see handles.py. */
interface Handle {
  name: string;
  /** Of a field, or of a plateau for a handle that moves all of it. */
  path: Path;
  axis: "step" | "level" | "learning_rate";
  step: number;
  level: number;
  value: number;
  low: number;
  high: number;
}

/** The comparison of a curve with the first one, or why there is none. */
interface Ratios {
  bound: number;
  peak_ratio: number;
  best_peak: number;
  fault?: string;
}

/** A shape to choose, and the P with which its formula begins. */
interface ShapeChoice {
  name: string;
  power: string | null;
}

/** Attributes of an element, and event listeners: see `setProperties`. */
type Properties = Record<string, unknown>;

/** A field of the form, and the path of what it changes. */
interface Field {
  input: HTMLInputElement | HTMLSelectElement;
  path: Path;
}

/** A control that can have the focus. */
type Control = (HTMLElement | SVGElement) & { disabled?: boolean };

type Child = Node | string | null;

/** A message, with the element that shows it. */
interface Place {
  message: string;
  /** The path of what it is about, as text. */
  key: string;
  slot: HTMLElement;
  /** False if it is about a whole curve. */
  isField: boolean;
}

/** A row of the table of curves. */
interface CurveRow extends Entry {
  /** Its number of steps; undefined while the page has no description of the curve. */
  total?: number;
}

interface DrawnRow extends CurveRow {
  isFirst: boolean;
  isOnly: boolean;
  isSelected: boolean;
  firstTotal?: number;
  ratios?: Ratios;
}

interface RowListeners {
  select(id: number): void;
  rename(id: number, typed: string): void;
  hide(id: number): void;
  remove(id: number): void;
  /** Move a curve to the top. */
  makeReference(id: number): void;
  /** Take over the best peak. */
  usePeak(id: number, peak: number): void;
}

/** A handle on the picture; `begin` starts a drag from a pointerdown event. */
interface Mark {
  node: SVGGElement;
  handle: Handle;
  begin(event: PointerEvent): void;
}

interface DragListeners {
  /** Receives each new value of a handle. */
  move(change: { handle: Handle; value: number }): void;
  endDrag(): void;
  /** Runs an action after all earlier changes have been drawn. */
  enqueue(action: () => void): void;
}

interface PictureListeners extends DragListeners {
  /** Called when the cursor moves. */
  read(): void;
  /** Called when a curve is clicked on. */
  choose(id: number): void;
}

interface ControlsListeners {
  entry(): Entry;
  /** Changes one field. */
  edit(path: Path, value: Typed): void;
  /** Adds, moves or removes rows and derived curves. */
  restructure(change: (entry: Entry) => Entry): void;
  /** Called when a field loses the focus. */
  leave(): void;
}
