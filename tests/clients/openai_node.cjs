// What tests/clients/test_openai_node.py runs: one case of OpenAI's client for Node.js against a
// server, its findings as one line of JSON.
//
//     NODE_PATH=.../node_modules node openai_node.cjs CASE BASE_URL MODEL
'use strict';

const {OpenAI} = require('openai');
const {zodResponseFormat, zodTextFormat} = require('openai/helpers/zod');
const {z} = require('zod');

const [name, baseURL, model] = process.argv.slice(2);
const client = new OpenAI({baseURL, apiKey: 'none', maxRetries: 0});
const messages = [{role: 'user', content: 'Write a function that adds two numbers.'}];
// The end token is the likeliest wherever it is allowed: an answer of exactly 13 tokens.
const ends = {max_tokens: 40, logit_bias: {1: 100}, min_tokens: 12};
const completion = {model, prompt: 'def parse(self, ', max_tokens: 60, temperature: 0};

async function streamed(choices) {
  const body = {
    model, messages, n: choices, logprobs: true, top_logprobs: 2, seed: 3, temperature: 0.8, ...ends,
  };
  const whole = await client.chat.completions.create(body);
  const stream = client.chat.completions.stream({...body, stream_options: {include_usage: true}});
  const seen = {deltas: '', snapshot: '', logprobs: 0};
  stream.on('content', (delta, snapshot) => {
    seen.deltas += delta;
    seen.snapshot = snapshot;
  });
  stream.on('logprobs.content.delta', ({content}) => (seen.logprobs += content.length));
  return {whole, final: await stream.finalChatCompletion(), seen};
}

const weather = z.object({
  city: z.enum(['Paris', 'Rome']), days: z.union([z.literal(1), z.literal(2)]), sunny: z.boolean(),
});
const asked = {model, messages, temperature: 0, max_tokens: 400};

// A function whose name is asked for is called once: the helper asks no more after that.
function runner(options) {
  const calls = [];
  const tools = [{
    type: 'function',
    function: {
      name: 'get_weather', description: 'Tells the weather.', parse: (text) => weather.parse(JSON.parse(text)),
      parameters: z.toJSONSchema(weather), function: (call) => (calls.push(call), 'It is warm.'),
    },
  }];
  const tool_choice = {type: 'function', function: {name: 'get_weather'}};
  return {calls, run: client.chat.completions.runTools({...asked, tools, tool_choice, ...options})};
}

const cases = {
  version: async () => require('openai/version').VERSION,

  retrieve: async () => {
    const listed = [];
    for await (const entry of client.models.list()) listed.push(entry);
    return {retrieved: await client.models.retrieve(model), listed};
  },

  missing: async () => {
    try {
      return await client.models.retrieve('Org/Other');
    } catch (error) {
      return {isNotFound: error instanceof OpenAI.NotFoundError, code: error.code};
    }
  },

  'stream-1': () => streamed(1),
  'stream-3': () => streamed(3),

  abort: async () => {
    const stream = client.chat.completions.stream({
      model, messages, max_tokens: 1900, ignore_eos: true,
    });
    stream.once('content', () => stream.abort());
    try {
      await stream.done();
      return {};
    } catch (error) {
      return {isAbort: error instanceof OpenAI.APIUserAbortError};
    }
  },

  form: async () => {
    const response_format = zodResponseFormat(weather, 'weather');
    const whole = await client.chat.completions.parse({...asked, response_format});
    const stream = client.chat.completions.stream({...asked, response_format});
    const streamed = await stream.finalChatCompletion();
    return [whole, streamed].map((answer) => answer.choices[0].message.parsed);
  },

  tools: async () => {
    const {calls, run} = runner({});
    return {calls, result: (await run.finalFunctionToolCallResult())};
  },

  'streamed-tools': async () => {
    const {calls, run} = runner({stream: true});
    return {calls, result: (await run.finalFunctionToolCallResult())};
  },

  responses: async () => {
    const {max_tokens, ...rest} = ends;
    const body = {model, input: messages, temperature: 0, max_output_tokens: max_tokens, ...rest};
    const whole = await client.responses.create(body);
    const stream = client.responses.stream(body);
    let deltas = '';
    stream.on('response.output_text.delta', ({delta}) => (deltas += delta));
    const final = (await stream.finalResponse()).output_text;
    return {whole: whole.output_text, deltas, final};
  },

  'responses-form': async () => {
    const text = {format: zodTextFormat(weather, 'weather')};
    const body = {model, input: messages, temperature: 0, max_output_tokens: 400, text};
    const streamed = await client.responses.stream(body).finalResponse();
    return [(await client.responses.parse(body)).output_parsed, streamed.output_parsed];
  },

  'responses-tools': async () => {
    const parameters = z.toJSONSchema(weather);
    const tools = [{type: 'function', name: 'get_weather', strict: true, parameters}];
    const answer = await client.responses.create({
      model, input: messages, temperature: 0, max_output_tokens: 400, tools,
      tool_choice: {type: 'function', name: 'get_weather'},
    });
    return answer.output.map((item) => weather.parse(JSON.parse(item.arguments)));
  },

  completions: async () => {
    const whole = await client.completions.create(completion);
    const chunks = [];
    for await (const chunk of await client.completions.create({...completion, stream: true})) {
      chunks.push(chunk.choices[0]);
    }
    return {
      whole: whole.choices[0].text,
      streamed: chunks.map((choice) => choice.text).join(''),
      reasons: chunks.map((choice) => choice.finish_reason),
    };
  },

  stops: async () => {
    const body = {...completion, temperature: 0.9, seed: 5};
    const whole = (await client.completions.create(body)).choices[0].text;
    const stop = ['<1>', '<2>', '<3>', '<4>', whole.slice(30, 40)];
    return {stop, whole, cut: (await client.completions.create({...body, stop})).choices[0]};
  },

  many: async () => {
    const text = async (i) => {
      const stream = client.chat.completions.stream({model, messages, seed: i, ...ends});
      return (await stream.finalChatCompletion()).choices[0].message.content;
    };
    return Promise.all([...Array(16).keys()].map(text));
  },
};

cases[name]().then((found) => console.log(JSON.stringify(found)));
