// Runs that diverged: an outcome of their arm, which curves and differences cannot show.

export const diverges = (run) => run.cause === "diverged";

// What the dots leave out: a run that diverged has no score in the round in which it would count.
export function divergence(store, pair) {
  const counted = new Set(store.current.map((block) => block.id));
  const runs = [...store.runs.values()].filter((run) => counted.has(run.block_id));
  const told = pair.map((arm) => {
    const own = runs.filter((run) => run.group_id === store.arms[arm]);
    const number = own.filter(diverges).length;
    return number ? `${store.arms[arm]} diverged in ${number} of ${own.length} replicates` : null;
  });
  const text = told.filter(Boolean).join(", ");
  return text && `${text}: what it came to before is shown here, while the answer scores it as registered. `;
}
