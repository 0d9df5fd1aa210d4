// The intervals of a grid: columns as the API sends them, changed in place by live events.

export class GridData {
  /** @param sent {starts, ends?, end?, states, letters, runs?, attempts?, batches?, limits?, timezone} */
  constructor(sent) {
    this.starts = sent.starts;
    this.timezone = sent.timezone;
    this.ends = sent.ends ?? null;
    this.end = sent.end ?? null;
    this.names = Object.values(sent.letters);
    const codes = new Map(Object.keys(sent.letters).map((letter, code) => [letter, code]));
    this.codes = Uint8Array.from(sent.states, (letter) => codes.get(letter));
    this.runs = sent.runs ?? [];
    this.attempts = sent.attempts ?? [];
    this.batches = sent.batches ?? [];
    this.limits = sent.limits ?? {};
    this.places = null;
  }

  get length() {
    return this.starts.length;
  }

  state(index) {
    return this.names[this.codes[index]];
  }

  endOf(index) {
    return this.ends?.[index] ?? this.starts[index + 1] ?? this.end;
  }

  /** Intervals by state, of [from, to). */
  counts(from = 0, to = this.length) {
    const found = {};
    const numbers = new Uint32Array(this.names.length);
    for (let n = from; n < to; n += 1) numbers[this.codes[n]] += 1;
    this.names.forEach((name, code) => numbers[code] && (found[name] = numbers[code]));
    return found;
  }

  /** Whether another reading is about the same intervals, so that it can be taken over in place. */
  sameAs(other) {
    const last = this.length - 1;
    return this.length === other.length && this.starts[0] === other.starts[0] && this.starts[last] === other.starts[last];
  }

  take(other) {
    Object.assign(this, other);
  }

  indexOfRun(id) {
    this.places ??= new Map(this.runs.map((run, index) => [run, index]));
    return this.places.get(id) ?? -1;
  }

  /** Apply a run's event. Returns whether something changed. */
  apply(event) {
    const code = this.names.indexOf(event.run_state);
    const index = code < 0 ? -1 : this.indexOfRun(event.run_id);
    if (index < 0) return false;
    this.codes[index] = code;
    if (event.attempt) this.attempts[index] = event.attempt;
    if (event.attempt_id) this.batches[index] = event.attempt_id;
    return true;
  }

  /** How many intervals in a row the same attempt has, with this one. */
  batchSize(index) {
    const batch = this.batches[index];
    if (!batch) return 1;
    let [from, to] = [index, index];
    while (from > 0 && this.batches[from - 1] === batch) from -= 1;
    while (to + 1 < this.length && this.batches[to + 1] === batch) to += 1;
    return to - from + 1;
  }
}
