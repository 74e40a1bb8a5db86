// Asks the gateway that serves this page. Whatever a model or a server says is only ever set as textContent.

const $ = (id) => document.getElementById(id);
const IMAGES = "PNG, JPEG, WebP, GIF or BMP";

let settings = { examples: 0, best_of: { stop: "never" } }; // the gateway's, see `start`
let image = null; // data URL
let example = 0; // the next one
let edits = { image: 0, question: 0 }; // how often each was set or begun to be; what arrives late is dropped
let running = null; // AbortController
let shown = []; // one element per candidate
let keys = []; // what their answers are equal by
let talks = []; // for each conversation that looks again its element, its list, and what its images show

class Told extends Error { // its message is for people; `field` is what caused it
  constructor(message, field = "") {
    super(message);
    this.field = field;
  }
}

// --- talking to the gateway

function headers() {
  const key = $("key").value.trim();
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function call(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { headers: headers(), cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Told("The gateway cannot be reached. Is it still running?");
  }
  if (response.ok) return response;
  let error = null;
  try {
    error = (await response.json()).error;
  } catch { /* not from the gateway: a proxy's page, perhaps */ }
  if (response.status === 401) {
    $("key-field").hidden = false;
    $("key").focus();
    throw new Told($("key").value ? "The gateway does not know this API key." : "An API key is needed.", "key");
  }
  throw refused(error, response.status);
}

function refused(error, status) {
  return new Told(refusal(error, status), error && error.code === "invalid_image" ? "file" : "");
}

function refusal(error, status) {
  const said = error && typeof error.message === "string" ? error.message : "";
  if (error && error.code === "invalid_image") return `The image was refused: ${said}`;
  return said ? `The gateway says: ${said}` : `The gateway failed (status ${status}).`;
}

// Server-sent events: comments are skipped, `data` lines of an event joined.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += value;
    const blocks = buffer.split(/\r?\n\r?\n/);
    buffer = blocks.pop();
    for (const block of blocks) {
      const lines = block.split(/\r?\n/);
      const field = (name) =>
        lines.filter((line) => line.startsWith(`${name}:`)).map((line) => line.slice(name.length + 1).trim());
      const data = field("data").join("\n");
      if (data) yield { name: field("event")[0] || "", data };
    }
  }
}

async function loadModels() {
  if ($("model").options.length) return;
  const { data } = await (await call("v1/models")).json();
  for (const { id } of data) {
    if (id.endsWith("@plain")) continue;
    const option = document.createElement("option");
    option.value = option.textContent = id;
    $("model").append(option);
  }
  if (!$("model").options.length) throw new Told("The gateway offers no model.");
  $("model-field").hidden = $("model").options.length < 2;
}

// --- the image

function showImage(url, name) {
  forget("Nothing was asked about this image yet.");
  image = url;
  const preview = $("preview");
  preview.src = url;
  preview.alt = `The image: ${name}`;
  preview.hidden = false;
  $("prompt").hidden = true;
  $("file-name").textContent = name;
  preview.onload = () => preview.classList.toggle("small", preview.naturalWidth < 160);
}

function dropImage() {
  forget("Nothing was asked yet.");
  image = null;
  $("preview").hidden = true;
  $("preview").removeAttribute("src");
  $("prompt").hidden = false;
  $("file-name").textContent = "No image yet.";
}

function asDataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Told(`${file.name} cannot be read.`, "file"));
    reader.readAsDataURL(file);
  });
}

async function take(file) {
  if (running) return say("The answer is still coming. Stop it to take another image.", "file");
  say("");
  dropImage();
  const turn = ++edits.image;
  const name = file.name || "pasted image";
  try {
    if (file.size > settings.image_bytes) {
      throw new Told(`${name} has ${megas(file.size)} MB, and ${megas(settings.image_bytes)} MB are allowed.`, "file");
    }
    let bitmap;
    try {
      bitmap = await createImageBitmap(file);
    } catch {
      throw new Told(`${name} is not an image that can be read. Choose a ${IMAGES} file.`, "file");
    }
    const { width, height } = bitmap;
    bitmap.close();
    if (width * height > settings.image_pixels) {
      const most = megas(settings.image_pixels);
      throw new Told(`${name} has ${width} × ${height} pixels, and ${most} million are allowed.`, "file");
    }
    const url = await asDataUrl(file);
    if (turn !== edits.image) return; // another image was taken meanwhile
    const type = file.type.startsWith("image/") ? file.type : "image/unknown"; // the gateway looks for itself
    showImage(`data:${type};base64,${url.slice(url.indexOf(",") + 1)}`, `${name}, ${width} × ${height}`);
  } catch (error) {
    if (turn === edits.image) report(error);
  }
}

function megas(count) {
  return String(Number((count / 1e6).toPrecision(count < 1e6 ? 1 : 3)));
}

async function showExample() {
  say("");
  const turn = { image: ++edits.image, question: edits.question };
  const late = () => turn.image !== edits.image || turn.question !== edits.question;
  try {
    const found = await (await call(`page/example?index=${example}`)).json();
    if (late()) return; // the visitor has begun with something else
    example = (example + 1) % settings.examples;
    $("file").value = "";
    showImage(found.image, found.name);
    $("question").value = found.question;
    $("answers").value = found.answers;
    $("example").textContent = "Another example";
  } catch (error) {
    if (!late()) report(error);
  }
}

// --- what is found

function text(tag, className, value) {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = value;
  return element;
}

function written(answer) {
  if (Array.isArray(answer)) return answer.map(written).join(" ");
  return typeof answer === "object" && answer !== null ? JSON.stringify(answer) : String(answer);
}

function forget(reason) {
  shown = [];
  keys = [];
  talks = [];
  $("candidates").replaceChildren();
  $("asked").textContent = "";
  clear(reason);
}

function clear(reason) {
  $("answer").textContent = "–";
  $("reason").textContent = reason;
  $("result").classList.remove("won", "unsure");
  $("facts").replaceChildren();
  $("progress").textContent = "";
}

function addCandidate(found) {
  const line = text("div", "line", "");
  const what = text("span", "what", "");
  const unread = found.answer === null;
  what.append(text("span", unread ? "unread" : "", unread ? "no readable answer" : written(found.answer)));
  const score = text("span", "score", "");
  if (typeof found.score === "number") {
    const meter = document.createElement("meter");
    meter.value = found.score;
    meter.setAttribute("aria-label", `Score of candidate ${found.index + 1}`);
    score.append(meter, text("span", "", found.score.toFixed(2)));
  } else {
    score.append(text("span", "tokens", "no score"), text("span", "", "–"));
  }
  line.append(text("span", "place", String(found.index + 1)), what, score);
  const item = document.createElement("li");
  item.append(line);
  const talk = talks[found.conversation];
  if (talk) {
    item.append(talk.steps);
    talk.item.remove();
  }
  shown[found.index] = item;
  keys[found.index] = found.key;
  $("candidates").append(item);
  $("progress").textContent = `${shown.filter(Boolean).length} of ${found.of}`;
}

// --- what is looked at again

const THUMBNAIL = 224; // pixels of a thumbnail's longer side

function addLook({ conversation, look: step }) {
  const talk = (talks[conversation] ??= beginTalk());
  const item = document.createElement("li");
  const asked = step.tool ? `${step.tool} ${JSON.stringify(step.arguments)}` : "no call";
  const delta = typeof step.delta_r === "number" ? `, Δr ${step.delta_r.toFixed(2)}` : "";
  const what = text("span", "", `${step.step}. ${asked.slice(0, 200)}${delta}`);
  if (step.error) what.append(text("span", "fault", ` ${step.error.slice(0, 200)}`));
  for (const [place, number] of step.images.entries()) {
    const { source, region, of } = step.sources[place];
    const whole = talk.parts.get(source);
    if (!whole || !region || !of) continue;
    const [left, top, right, bottom] = [0, 1, 2, 3].map((side) => region[side] / of[side % 2]);
    const part = {
      x: whole.x + left * whole.width,
      y: whole.y + top * whole.height,
      width: (right - left) * whole.width,
      height: (bottom - top) * whole.height,
    };
    talk.parts.set(number, part);
    item.append(thumbnail(part, `Image ${number}, of image ${source}`));
  }
  item.append(what);
  talk.steps.append(item);
}

function beginTalk() {
  const item = document.createElement("li");
  const steps = document.createElement("ol");
  steps.setAttribute("aria-label", "What was looked at");
  item.append(text("span", "unread", "Looking …"), steps);
  $("candidates").append(item);
  // The page asks about one image, of which others show parts, in shares of its sides.
  return { item, steps, parts: new Map([[1, { x: 0, y: 0, width: 1, height: 1 }]]) };
}

function thumbnail(part, name) {
  const { naturalWidth: width, naturalHeight: height } = $("preview");
  const canvas = document.createElement("canvas");
  const [wide, high] = [part.width * width, part.height * height];
  const scale = THUMBNAIL / Math.max(wide, high, 1);
  canvas.width = Math.max(Math.round(wide * scale), 1);
  canvas.height = Math.max(Math.round(high * scale), 1);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", name);
  const sizes = [part.x * width, part.y * height, wide, high, 0, 0, canvas.width, canvas.height];
  canvas.getContext("2d").drawImage($("preview"), ...sizes);
  return canvas;
}

function addText(sample) {
  const item = shown[sample.index];
  if (!item || typeof sample.text !== "string") return;
  const details = document.createElement("details");
  const more = sample.finish_reason === "stop" ? "" : `, ended by ${sample.finish_reason}`;
  details.append(text("summary", "", `What it wrote: ${sample.tokens} tokens${more}`), text("p", "", sample.text));
  item.append(details);
}

// What gave the scores, in words.
const SCORERS = {
  inline: "inline: each candidate wrote its own",
  soft: "soft: the average of the scores that each candidate could have written for itself",
  greedy: "greedy: the likeliest score that each candidate could have written for itself",
  fused: "fused: the candidate's own score, and how likely its words were",
  judge: "judge: a model was asked about each answer",
  none: "nothing",
};

function scorer(name) {
  return SCORERS[name] || `${name}: ${(SCORERS[name.split(":")[0]] || "").replace(/^[a-z]+: /, "")}`.replace(/: $/, "");
}

const STOPPED = {
  samples: "all drawn",
  tokens: "token budget spent",
  confident: "sure enough",
  greedy: "another would be the same",
  deadline: "time was up",
  fault: "the model server failed",
};

function conclude(found, usage, seconds) {
  const { verification: made, best_of: all, refused, answer } = found;
  $("answer").textContent = refused || written(made.answer === null ? answer || "No readable answer" : made.answer);
  const rule = $("strategy").querySelector(`option[value="${CSS.escape(made.strategy)}"]`);
  $("reason").textContent = `Chosen by ${rule ? rule.textContent : made.strategy}. ${sentence(made.reason)}`;
  const sure = typeof made.probability === "number" ? made.probability : made.confidence;
  const unsure = made.abstained || made.answer === null || (typeof sure === "number" && sure < 0.5);
  $("result").classList.toggle("won", !unsure);
  $("result").classList.toggle("unsure", unsure);
  if (unsure && !refused && made.answer !== null) $("reason").append(" This answer is unsure: take it with care.");
  for (const sample of all.samples || []) addText(sample);
  const key = keys[made.candidate];
  shown.forEach((item, place) => {
    const won = place === made.candidate;
    const same = won || (typeof key === "string" && keys[place] === key);
    item.classList.toggle("won", won && !made.abstained);
    item.classList.toggle("same", same);
    item.classList.toggle("unsure", same && unsure);
    const badge = won ? (made.abstained ? "withheld" : "chosen") : same ? "same answer" : "";
    if (badge) item.querySelector(".what").append(text("span", "badge", badge));
  });
  const facts = [
    ["Votes", `${made.votes} of ${made.samples}`],
    ["Score", number(made.score)],
    made.probability === null
      ? ["Confidence, uncalibrated", number(made.confidence)]
      : ["Probability, calibrated", number(made.probability)],
    ["Scored by", scorer(made.verifier)],
    ["Samples used", `${all.samples_used}, ${STOPPED[all.stopped] || all.stopped}`],
    ...(all.samples_missing ? [["Did not come", all.samples_missing]] : []),
    ...(usage ? [["Tokens written", usage.completion_tokens], ["Tokens read", usage.prompt_tokens]] : []),
    ["Time", `${seconds.toFixed(1)} s`],
  ];
  for (const [name, value] of facts) {
    const pair = document.createElement("div");
    const told = String(value);
    if (told.length > 28) pair.className = "wide";
    pair.append(text("dt", "", name), text("dd", "", told));
    $("facts").append(pair);
  }
}

function number(value) {
  return typeof value === "number" ? value.toFixed(2) : "none";
}

function sentence(said) {
  return `${said.charAt(0).toUpperCase()}${said.slice(1)}.`;
}

// --- asking

// An error stands beside what caused it, else below the form.
function say(message, field = "") {
  const alert = $("alert");
  const place = field && !$(field).closest("[hidden]") ? $(field).closest(".field") : null;
  for (const id of ["file", "question", "n", "key"]) {
    if (message && place && id === field) $(id).setAttribute("aria-invalid", "true");
    else $(id).removeAttribute("aria-invalid");
  }
  if (place && place.parentElement.matches(".row")) place.after(alert); // with the row's whole width
  else if (place) place.append(alert);
  else $("form").append(alert);
  alert.textContent = message;
}

function report(error) {
  if (!(error instanceof Told)) console.error(error);
  if (error instanceof Told) say(error.message, error.field);
  else say("The page failed; the browser's console says why.");
}

function checked() {
  const question = $("question").value.trim();
  const n = Number($("n").value);
  const fault = (id, message) => {
    $(id).focus();
    return new Told(message, id);
  };
  if (!image) throw fault("file", "Choose an image first.");
  if (!question) throw fault("question", "Ask a question about the image.");
  const most = Number($("n").max);
  if (!Number.isInteger(n) || n < 1 || n > most) throw fault("n", `Candidates: a whole number from 1 to ${most}.`);
  return { question, n };
}

async function ask() {
  say("");
  const { question, n } = checked();
  running = new AbortController();
  edits.image++; // an example that is still on its way comes too late
  const { signal } = running;
  const begun = performance.now();
  const seconds = () => (performance.now() - begun) / 1000;
  forget("Asking …");
  $("asked").textContent = question;
  busy(true);
  try {
    await loadModels();
    const response = await call("v1/chat/completions", {
      method: "POST",
      signal,
      body: JSON.stringify({
        model: $("model").value,
        stream: true,
        stream_options: { include_usage: true },
        messages: [{
          role: "user",
          content: [{ type: "image_url", image_url: { url: image } }, { type: "text", text: question }],
        }],
        best_of: {
          n,
          strategy: $("strategy").value,
          answers: $("answers").value,
          stop: !$("early").checked ? "never" : settings.best_of.stop === "never" ? "posterior" : settings.best_of.stop,
          samples: true,
          progress: "events",
        },
        ...($("look").checked ? { look: {} } : {}),
      }),
    });
    $("reason").textContent = "Candidates are coming …";
    const found = { answer: "", refused: "" };
    let usage = null;
    let whole = false;
    for await (const { name, data } of events(response)) {
      if (data === "[DONE]") {
        whole = true;
        break;
      }
      const said = JSON.parse(data);
      if (said.error) throw refused(said.error, 200);
      if (name === "look") addLook(said);
      if (name === "candidate") addCandidate(said);
      if (name) continue;
      usage = said.usage || usage;
      for (const choice of said.choices) {
        found.answer += choice.delta.content || "";
        found.refused += choice.delta.refusal || "";
        if (choice.verification) Object.assign(found, { verification: choice.verification, best_of: said.best_of });
      }
    }
    if (!whole || !found.verification) throw new Told("The connection broke off before the answer was there.");
    conclude(found, usage, seconds());
  } catch (error) {
    const came = shown.filter(Boolean).length;
    const some = came ? `${came} of ${n} candidates had come; nothing was chosen.` : "Nothing had come yet.";
    if (error.name === "AbortError") clear(`Stopped by you after ${seconds().toFixed(1)} s. ${some}`);
    else {
      clear(`There is no answer. ${came ? some : ""}`);
      report(error instanceof TypeError ? new Told("The connection to the gateway broke off.") : error);
    }
  } finally {
    running = null;
    busy(false);
  }
}

function busy(is) {
  $("inputs").disabled = is; // the answer stands beside what was asked
  $("ask").disabled = is;
  $("stop").disabled = !is;
  $("candidates").setAttribute("aria-busy", String(is));
  if (is) {
    $("stop").focus();
    if (window.innerWidth < 832) $("stop").scrollIntoView({ block: "start" }); // the answer is below it
  } else if (document.activeElement === $("stop") || document.activeElement === document.body) {
    $("ask").focus({ preventScroll: true });
  }
}

// --- wiring

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) ask().catch(report);
});
$("stop").addEventListener("click", () => running && running.abort());
$("example").addEventListener("click", showExample);
for (const id of ["question", "answers"]) $(id).addEventListener("input", () => edits.question++);
$("key").addEventListener("change", () => loadModels().then(() => say(""), report));
$("file").addEventListener("change", () => $("file").files[0] && take($("file").files[0]));
for (const kind of ["dragover", "drop"]) {
  window.addEventListener(kind, (event) => {
    event.preventDefault(); // a file that misses its place must not replace the page
    $("drop").classList.toggle("over", kind === "dragover");
    const [file] = kind === "drop" ? event.dataTransfer.files : [];
    if (file) take(file);
  });
}
window.addEventListener("dragleave", () => $("drop").classList.remove("over"));
window.addEventListener("paste", (event) => {
  const [file] = event.clipboardData.files;
  if (!file) return; // text goes where the cursor is
  event.preventDefault();
  take(file);
});

// What the form does not say of how this gateway was started.
function inForce(chosen) {
  const told = [`Scores are ${scorer(chosen.verifier)}.`];
  if (chosen.abstain_below !== null) told.push(`Answers less sure than ${chosen.abstain_below} are withheld.`);
  if (chosen.temperature !== null) told.push(`The sampling temperature is ${chosen.temperature}.`);
  if (chosen.budget_tokens !== null) told.push(`All candidates together have ${chosen.budget_tokens} tokens.`);
  if (!chosen.instruction) told.push("No answer format is asked for.");
  return told.join(" ");
}

async function start() {
  settings = await (await call("page/settings")).json();
  const chosen = settings.best_of; // what holds where a request says nothing
  $("n").value = chosen.n;
  $("n").max = settings.most;
  $("strategy").value = chosen.strategy;
  $("answers").value = chosen.answers;
  $("early").checked = chosen.stop !== "never";
  $("in-force").textContent = inForce(chosen);
  $("example").hidden = !settings.examples;
  $("look-field").hidden = !settings.looks;
  $("key-field").hidden = !settings.needs_key;
  if (settings.examples && !edits.image && !edits.question) await showExample();
  if (!settings.needs_key) await loadModels();
}

start().catch(report);
