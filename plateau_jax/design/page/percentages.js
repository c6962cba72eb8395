// Percentages of a number of steps, as the server reads them: as the decimals that are written, rounded down to steps.

// The steps that a percentage is; NaN if one of the two is no number, or out of bounds.
export function stepsOfPercentage(percentage, whole) {
  if (typeof percentage !== "number" || !(Math.abs(percentage) < 1e15) || !Number.isSafeInteger(whole)) return NaN;
  const [, sign, digits, decimals = "", exponent = "0"] = /^(-?)(\d+)\.?(\d*)(?:e(.*))?$/.exec(String(percentage));
  const steps = (BigInt(whole) * BigInt(digits + decimals)) / (100n * 10n ** BigInt(decimals.length - Number(exponent)));
  return Number(sign ? -steps : steps);
}

// The percentage with at most one decimal that is exactly this many steps: 80 for 7600 of 9500, null for 7500.
export function roundPercentage(steps, whole) {
  const percentage = Math.ceil((1000 * steps) / whole) / 10;
  return stepsOfPercentage(percentage, whole) === steps ? percentage : null;
}
