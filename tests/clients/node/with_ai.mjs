// The AI SDK, with @ai-sdk/openai (Responses and chat), @ai-sdk/openai-compatible and @ai-sdk/anthropic.

import assert from 'node:assert/strict'
import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { Output, embed, embedMany, generateText, jsonSchema, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'
import { HELLO, MODEL, PICK, SUM, URL, WEATHER, checkPick, run } from './suite.mjs'

const openai = createOpenAI({ baseURL: URL, apiKey: 'none' })
const like = createOpenAICompatible({ name: 'llmk', baseURL: URL, includeUsage: true, supportsStructuredOutputs: true })
const anthropic = createAnthropic({ baseURL: URL, apiKey: 'none' })
const models = { responses: openai(MODEL), chat: openai.chat(MODEL), like: like(MODEL), anthropic: anthropic(MODEL) }
const Pick = z.object({ number: z.union([z.literal(1), z.literal(2), z.literal(3)]), sure: z.boolean() })
const pick = tool({ description: 'Picks a number.', inputSchema: Pick, strict: true, execute: () => 'picked' })
const weather = tool({
  description: 'Tells the current weather of a city.',
  inputSchema: z.object({ city: z.string() }),
  execute: ({ city }) => `21 degrees in ${city}`,
})

async function each(check) {
  for (const [name, model] of Object.entries(models)) {
    try {
      await check(model)
    } catch (error) {
      throw new Error(`${name}: ${error?.stack ?? error} ${error?.responseBody ?? ''}`)
    }
  }
}

// The answer of streamText, once it is complete. An error of the stream is thrown.
async function streamed(options) {
  let failed
  const made = streamText({ ...options, onError: ({ error }) => (failed = error) })
  await made.consumeStream()
  if (failed) throw failed
  return made
}

const cases = {
  chat: () =>
    each(async (model) => {
      const answer = await generateText({ model, system: 'Be brief.', prompt: HELLO })
      assert.equal(answer.finishReason, 'stop')
      assert.ok(answer.text)
      assert.ok(answer.usage.inputTokens > 0 && answer.usage.outputTokens > 0)
    }),

  stream_is_the_whole_answer: () =>
    each(async (model) => {
      const whole = await generateText({ model, prompt: HELLO, temperature: 0 })
      const stream = await streamed({ model, prompt: HELLO, temperature: 0 })
      assert.equal(await stream.text, whole.text)
      assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens)
    }),

  tool_loop: () =>
    each(async (model) => {
      const options = { model, prompt: WEATHER, tools: { get_weather: weather }, temperature: 0, stopWhen: stepCountIs(3) }
      for (const made of [await generateText(options), await streamed(options)]) {
        const steps = await made.steps
        assert.deepEqual(steps[0].toolCalls[0].input, { city: 'Paris' })
        assert.ok(steps.length > 1)
      }
    }),

  required_named_and_strict_tools: () =>
    each(async (model) => {
      const providerOptions = { openai: { parallelToolCalls: false }, anthropic: { disableParallelToolUse: true } }
      for (const toolChoice of ['required', { type: 'tool', toolName: 'pick' }]) {
        const options = { model, prompt: HELLO, tools: { pick }, toolChoice, maxOutputTokens: 150, providerOptions }
        for (const made of [await generateText(options), await streamed(options)]) {
          const calls = await made.toolCalls
          if (model !== models.like) assert.equal(calls.length, 1) // which has no such option
          checkPick(calls[0].input)
        }
      }
    }),

  structured_output: () =>
    each(async (model) => {
      for (const schema of [Pick, jsonSchema(PICK)]) {
        const options = { model, prompt: HELLO, output: Output.object({ schema }), maxOutputTokens: 300 }
        checkPick((await generateText(options)).output)
        checkPick(await (await streamed(options)).output)
      }
      const choice = await generateText({ model, prompt: HELLO, output: Output.choice({ options: ['a', 'b'] }) })
      assert.ok(['a', 'b'].includes(choice.output))
    }),

  async thinking() {
    const first = await generateText({ model: models.like, prompt: SUM, temperature: 0 })
    assert.ok(first.reasoningText)
    const messages = [
      { role: 'user', content: SUM },
      ...first.response.messages,
      { role: 'user', content: 'And 1 + 1?' },
    ]
    await each((model) => generateText({ model, messages, maxOutputTokens: 4 }))
    for (const reasoningEffort of ['low', 'high']) {
      const providerOptions = { openai: { reasoningEffort }, llmk: { reasoningEffort } }
      await each((model) => generateText({ model, prompt: HELLO, maxOutputTokens: 4, providerOptions }))
    }
  },

  async settings() {
    const providerOptions = {
      openai: {
        logprobs: 2,
        parallelToolCalls: false,
        user: 'u',
        metadata: { a: 'b' },
        serviceTier: 'auto',
        textVerbosity: 'low',
        prediction: { type: 'content', content: 'Hello' },
        strictJsonSchema: true,
        promptCacheKey: 'k',
        safetyIdentifier: 's',
      },
      llmk: { user: 'u' },
    }
    const common = { prompt: HELLO, seed: 1, topP: 0.9, presencePenalty: 0.1, frequencyPenalty: 0.1 }
    await each((model) =>
      generateText({ model, ...common, stopSequences: ['zzz'], maxOutputTokens: 4, providerOptions }),
    )
  },

  async embeddings() {
    for (const model of [openai.embedding(MODEL), like.embeddingModel(MODEL)]) {
      const { embedding, usage } = await embed({ model, value: 'One text' })
      assert.ok(usage.tokens > 0)
      const { embeddings } = await embedMany({ model, values: ['One text', 'Another'] })
      assert.equal(embeddings.length, 2)
      assert.ok(embedding.every((value, at) => Math.abs(value - embeddings[0][at]) < 2e-3))
    }
    const providerOptions = { openai: { dimensions: 16 } }
    const { embedding } = await embed({ model: openai.embedding(MODEL), value: 'One text', providerOptions })
    assert.equal(embedding.length, 16)
  },

  completions: () =>
    Promise.all(
      [openai.completion(MODEL), like.completionModel(MODEL)].map(async (model) => {
        const options = { model, prompt: 'The capital of France is', temperature: 0, maxOutputTokens: 8 }
        assert.equal(await (await streamed(options)).text, (await generateText(options)).text)
      }),
    ),

  async errors() {
    for (const model of [openai('gpt-4o'), openai.chat('gpt-4o'), like('gpt-4o'), anthropic('gpt-4o')]) {
      await assert.rejects(generateText({ model, prompt: HELLO }), (error) => error.statusCode === 404)
    }
    await each((model) =>
      assert.rejects(generateText({ model, prompt: 'word '.repeat(9000) }), (error) =>
        error.message.includes('maximum context length'),
      ),
    )
  },
}

await run(cases, 'ai', '@ai-sdk/openai', '@ai-sdk/openai-compatible', '@ai-sdk/anthropic')
