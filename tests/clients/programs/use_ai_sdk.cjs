// Vercel's AI SDK, by its provider for servers like OpenAI's and by that for OpenAI. As the programs in
// Python, whose cases.py says how they are called and what they answer:
//
//     NODE_PATH=.../node_modules node use_ai_sdk.cjs ANSWER.json BASE_URL MODEL CASE...
'use strict';

const {writeFileSync} = require('node:fs');
const {
  generateText, Output, stepCountIs, streamText, tool, wrapLanguageModel,
} = require('ai');
const {createOpenAICompatible} = require('@ai-sdk/openai-compatible');
const {createOpenAI} = require('@ai-sdk/openai');
const {z} = require('zod');

const [answer, baseURL, name, ...names] = process.argv.slice(2);
const compatible = createOpenAICompatible({
  name: 'specfabric', baseURL, apiKey: 'none', includeUsage: true, supportsStructuredOutputs: true,
});
const openai = createOpenAI({baseURL, apiKey: 'none'});

const prompt = 'What is the weather in Paris?';
const weather = z.object({
  place: z.object({city: z.enum(['Paris', 'Rome']), country: z.enum(['France', 'Italy'])}),
  days: z.union([z.literal(1), z.literal(2), z.literal(3)]),
  sunny: z.boolean(),
  wind: z.enum(['north', 'south']).nullable(),
});

// Twelve tokens: as many as the texts of cases.py have without the one that ends them, which OpenAI's
// provider has no way to ask for.
const text = {prompt, temperature: 0, maxOutputTokens: 12, maxRetries: 0};
const whole = {...text, maxOutputTokens: 400};

const found = ({text, usage, finishReason}) => ({text, tokens: usage.outputTokens, finishReason});

async function streamed(model) {
  const result = streamText({model, ...text});
  const parts = [];
  for await (const part of result.textStream) parts.push(part);
  return {parts, tokens: (await result.usage).outputTokens, finishReason: await result.finishReason};
}

// The model with short answers.
const short = (model) => wrapLanguageModel({
  model,
  middleware: {
    specificationVersion: 'v3',
    transformParams: async ({params}) => ({...params, maxOutputTokens: text.maxOutputTokens}),
  },
});

// The model is made to call in the first step; in the second it is told what the tool said. Earlier
// messages go in full: a server that stores nothing knows no references to them.
function calling(model) {
  const calls = [];
  const tools = {
    get_weather: tool({
      description: 'Tells the weather.',
      inputSchema: z.object({
        city: z.enum(['Paris', 'Rome']),
        days: z.union([z.literal(1), z.literal(2), z.literal(3)]),
        sunny: z.boolean(),
      }),
      execute: async (call) => {
        calls.push(call);
        return 'It is warm.';
      },
    }),
  };
  return {
    calls,
    options: {
      model, tools, ...whole, stopWhen: stepCountIs(2), providerOptions: {openai: {store: false}},
      prepareStep: ({stepNumber}) => stepNumber === 0 ?
        {toolChoice: {type: 'tool', toolName: 'get_weather'}} :
        {model: short(model), toolChoice: 'none'},
    },
  };
}

async function toolsOf(model) {
  const {calls, options} = calling(model);
  const result = await generateText(options);
  return {calls, answer: result.text, steps: result.steps.map((step) => step.finishReason)};
}

async function streamedToolsOf(model) {
  const {calls, options} = calling(model);
  const result = streamText(options);
  const inputs = [];
  for await (const part of result.fullStream) {
    if (part.type === 'error') throw part.error;
    if (part.type === 'tool-input-delta') inputs.push(part.delta);
  }
  return {
    calls, answer: await result.text, inputs: [JSON.parse(inputs.join(''))],
    steps: (await result.steps).map((step) => step.finishReason),
  };
}

async function form(model) {
  const output = Output.object({schema: weather});
  return (await generateText({model, ...whole, output})).output;
}

async function streamedForm(model) {
  const result = streamText({model, ...whole, output: Output.object({schema: weather})});
  let last;
  for await (const part of result.partialOutputStream) last = part;
  return weather.parse(last);
}

const asked = {
  text: async (model) => found(await generateText({model, ...text})),
  stream: streamed,
  tools: toolsOf,
  'streamed tools': streamedToolsOf,
  form,
  'streamed form': streamedForm,
};
const models = {
  '': compatible(name), 'as OpenAI: ': openai.chat(name), 'responses: ': openai.responses(name),
};
const cases = Object.fromEntries(Object.entries(models).flatMap(([way, model]) =>
  Object.entries(asked).map(([what, ask]) => [way + what, () => ask(model)])));

async function main() {
  const told = {versions: {}, found: {}, failed: {}};
  for (const name of ['ai', '@ai-sdk/openai-compatible', '@ai-sdk/openai']) {
    told.versions[name] = require(`${name}/package.json`).version;
  }
  for (const name of names) {
    try {
      told.found[name] = await cases[name]();
    } catch (error) {
      told.failed[name] = `${error.stack}\n${error.responseBody ?? ''}`;
    }
  }
  writeFileSync(answer, JSON.stringify(told));
}

main();
