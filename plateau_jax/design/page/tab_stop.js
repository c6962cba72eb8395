// One stop of Tab for a group of buttons: the arrow keys move the focus within the group.

// moved(button) is called when the focus has moved to another button.
export function shareTabStop(buttons, moved = () => {}) {
  const stopAt = (stop) => buttons.forEach((button) => (button.tabIndex = button === stop ? 0 : -1));
  buttons.forEach((button, index) => button.addEventListener("keydown", ({ key }) => {
    const offset = { ArrowRight: 1, ArrowLeft: buttons.length - 1 }[key];
    if (offset === undefined) return;
    const next = buttons[(index + offset) % buttons.length];
    stopAt(next);
    next.focus();
    moved(next);
  }));
  buttons.forEach((button) => button.addEventListener("click", () => stopAt(button)));
  stopAt(buttons[0]);
}
