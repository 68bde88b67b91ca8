// One order for many allocations.

/**
 * Does it to a few at a time, all of them, and fails with what went wrong for how many. Without any it fails, too:
 * whoever orders something sees that nothing was done.
 */
export async function each(running, act) {
  if (!running.length) throw new Error("this page knows of no running allocation; try again when it shows one");
  const wrong = [];
  const next = running.values();
  const work = async () => { for (const a of next) await act(a).catch((error) => wrong.push(error)); };
  await Promise.all([work(), work(), work(), work()]);
  if (wrong.length) throw new Error(`${wrong.length} of ${running.length}: ${wrong[0].message}`);
}
