// Percentages of a number of steps, as the server reads them: as the decimals that are written, rounded down to steps.

// The steps that a percentage is; NaN if one of the two is no number, or out of bounds.
export function stepsOfPercentage(percentage, whole) {
  if (typeof percentage !== "number" || !(Math.abs(percentage) < 1e15) || !Number.isSafeInteger(whole)) return NaN;
  const [, sign, digits, decimals = "", exponent = "0"] = /^(-?)(\d+)\.?(\d*)(?:e(.*))?$/.exec(String(percentage));
  const steps = (BigInt(whole) * BigInt(digits + decimals)) / (100n * 10n ** BigInt(decimals.length - Number(exponent)));
  return Number(sign ? -steps : steps);
}

// The shortest percentage that is exactly this many steps: 80 for 8000 of 10000, 78.95 for 7500 of 9500.
export function percentageOfSteps(steps, whole) {
  for (let decimals = 0; ; decimals += 1) {
    const numerator = 100n * 10n ** BigInt(decimals) * BigInt(steps);
    const rounded = (numerator + BigInt(whole) - 1n) / BigInt(whole);
    const percentage = Number(`${rounded}e-${decimals}`);
    if (stepsOfPercentage(percentage, whole) === steps) return percentage;
  }
}
