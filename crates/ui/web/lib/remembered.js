// What was made of an object is kept as long as the object is: lists of ten thousand are asked at each key of a filter.

export function remembered(make) {
  const known = new WeakMap();
  return (of) => {
    if (!known.has(of)) known.set(of, make(of));
    return known.get(of);
  };
}
