// Reads the compressed chunks of the page: the index at once, metrics, texts and token values when they are needed.

const chunks = new Map(); // name -> promise of its contents

// Bytes of a chunk; its element is emptied, because the text is not needed again.
async function readBytes(name) {
  const node = document.getElementById(name);
  const packed = decodeBase64(node.textContent);
  node.textContent = "";
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function decodeBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

function readOnce(name, decode) {
  if (!chunks.has(name)) chunks.set(name, readBytes(name).then(decode));
  return chunks.get(name);
}

export function readJson(name) {
  return readOnce(name, (bytes) => JSON.parse(new TextDecoder().decode(bytes)));
}

// Metrics of a run: a map from name to {x, y}, of finite numbers only. The format is in metric_columns.py.
export function readMetrics(run) {
  const { chunk, grids, names, grid_of: gridOf } = run.metrics;
  return readOnce(chunk, (planes) => {
    const count = planes.length / 4;
    const bytes = new Uint8Array(planes.length);
    for (let plane = 0; plane < 4; plane++) {
      for (let i = 0; i < count; i++) bytes[4 * i + plane] = planes[plane * count + i];
    }
    let end = 0;
    const xs = grids.map((length) => {
      const x = Float64Array.from(new Int32Array(bytes.buffer, 4 * end, length));
      end += length;
      return x;
    });
    const found = new Map();
    names.forEach((name, place) => {
      const x = xs[gridOf[place]];
      found.set(name, { x, y: new Float32Array(bytes.buffer, 4 * end, x.length) });
      end += x.length;
    });
    return found;
  });
}

// The table of episodes as rows; columns are those of episode_index.py.
export function episodeRows(columns, report) {
  const agents = Object.keys(columns.agents);
  return columns.file.map((number, id) => {
    const file = report.files[number];
    const row = {
      id,
      file: number,
      place: columns.place[id],
      run: file.run,
      mode: file.mode, // train | eval
      sampling: columns.mode[id], // train | sampled | greedy
      iteration: file.iteration,
    };
    for (const name of ["score", "turns", "chars", "group", "prompt"]) row[name] = columns[name][id];
    for (const name of ["truncated", "failed", "zero_variance"]) row[name] = columns[name][id] === 1;
    row.agents = Object.fromEntries(agents.map((agent) => [agent, columns.agents[agent][id]]));
    return row;
  });
}

// An episode with the token values of its turns; null if its file is left out.
export async function readEpisode(row, report) {
  const file = report.files[row.file];
  if (!file.text) return null;
  const [episodes, tokens] = await Promise.all([readJson(file.text), file.tokens ? readJson(file.tokens) : null]);
  const episode = episodes[row.place];
  return {
    ...episode,
    turns: episode.turns.map((turn, place) => ({ ...turn, tokens: tokens?.[row.place][place] ?? null })),
  };
}
