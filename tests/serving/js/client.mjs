// The official JavaScript client against a gateway. Usage: node client.mjs ADDRESS IMAGE_DATA_URL
// Prints one JSON object with what the client made of each reply.
import OpenAI from "openai";

const [baseURL, url] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "of-a-client", maxRetries: 0 });
const content = [
  { type: "image_url", image_url: { url } },
  { type: "text", text: "What is shown?" },
];
const ask = { model: "m", messages: [{ role: "user", content }] };
const found = {};

found.models = (await client.models.list()).data.map((model) => model.id);

const whole = await client.chat.completions.create({ ...ask, n: 2, best_of: { n: 3 } });
found.answers = whole.choices.map((choice) => choice.message.content);
found.verification = whole.choices[0].verification;
found.usage = whole.usage;

const stream = await client.chat.completions.create({
  ...ask,
  model: "m@bo3,strategy=best",
  stream: true,
  stream_options: { include_usage: true },
});
found.streamed = "";
for await (const chunk of stream) {
  const text = chunk.choices[0]?.delta?.content ?? "";
  found.streamed += text;
  found.finish = chunk.choices[0]?.finish_reason ?? found.finish;
  found.streamedUsage = chunk.usage ?? found.streamedUsage;
}

const helped = client.chat.completions.stream({ ...ask });
found.helped = await helped.finalContent();

try {
  await client.chat.completions.create({ ...ask, best_of: { strategy: "nice" } });
} catch (error) {
  found.error = { status: error.status, type: error.type, param: error.param, name: error.constructor.name };
}

const leaving = new AbortController();
setTimeout(() => leaving.abort(), 100);
try {
  await client.chat.completions.create({ ...ask, model: "m", user: "slow" }, { signal: leaving.signal });
} catch (error) {
  found.left = error.constructor.name;
}

console.log(JSON.stringify(found));
