// The official `openai` client for Node.

import assert from 'node:assert/strict'
import OpenAI from 'openai'
import { zodFunction, zodResponseFormat } from 'openai/helpers/zod'
import { z } from 'zod'
import { HELLO, MODEL, SUM, URL, WEATHER, WEATHER_TOOL, all, checkPick, run } from './suite.mjs'

const client = new OpenAI({ baseURL: URL, apiKey: 'none' })
const chat = { model: MODEL, messages: [{ role: 'user', content: HELLO }] }
const ask = { model: MODEL, messages: [{ role: 'user', content: WEATHER }], tools: [WEATHER_TOOL], temperature: 0 }
const Pick = z.object({ number: z.union([z.literal(1), z.literal(2), z.literal(3)]), sure: z.boolean() })

const cases = {
  async chat() {
    const answer = await client.chat.completions.create(chat)
    assert.equal(answer.choices[0].finish_reason, 'stop')
    assert.ok(answer.choices[0].message.content)
    const { prompt_tokens, completion_tokens, total_tokens } = answer.usage
    assert.equal(prompt_tokens + completion_tokens, total_tokens)
    assert.equal((await client.models.list()).data[0].id, MODEL)
  },

  async stream_is_the_whole_answer() {
    const whole = (await client.chat.completions.create({ ...chat, temperature: 0 })).choices[0].message.content
    const chunks = await all(await client.chat.completions.create({ ...chat, temperature: 0, stream: true }))
    assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join(''), whole)
    const helper = client.chat.completions.stream({
      ...chat,
      temperature: 0,
      stream_options: { include_usage: true },
    })
    assert.equal(await helper.finalContent(), whole)
    assert.ok((await helper.totalUsage()).completion_tokens > 0)
  },

  async tool_loop() {
    const { message, finish_reason } = (await client.chat.completions.create(ask)).choices[0]
    assert.equal(finish_reason, 'tool_calls')
    assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), { city: 'Paris' })
    const result = { role: 'tool', tool_call_id: message.tool_calls[0].id, content: '21 degrees' }
    assert.ok(await client.chat.completions.create({ ...ask, messages: [...ask.messages, message, result] }))
    const streamed = await client.chat.completions.stream(ask).finalMessage()
    assert.deepEqual(JSON.parse(streamed.tool_calls[0].function.arguments), { city: 'Paris' })
  },

  async run_tools() {
    const cities = []
    const tool = {
      type: 'function',
      function: {
        ...WEATHER_TOOL.function,
        parse: JSON.parse,
        function: ({ city }) => {
          cities.push(city)
          return '21 degrees'
        },
      },
    }
    for (const stream of [false, true]) {
      const runner = client.chat.completions.runTools({ ...ask, tools: [tool], stream })
      await runner.done()
    }
    assert.ok(cities.length >= 2)
  },

  async required_named_and_strict_tools() {
    const tools = [zodFunction({ name: 'pick', parameters: Pick })]
    for (const tool_choice of ['required', { type: 'function', function: { name: 'pick' } }]) {
      const options = { ...chat, tools, tool_choice, parallel_tool_calls: false, max_completion_tokens: 150 }
      const answer = await client.chat.completions.parse(options)
      assert.equal(answer.choices[0].message.tool_calls.length, 1)
      checkPick(answer.choices[0].message.tool_calls[0].function.parsed_arguments)
    }
  },

  async structured_output() {
    const options = { ...chat, response_format: zodResponseFormat(Pick, 'pick'), max_tokens: 300 }
    checkPick((await client.chat.completions.parse(options)).choices[0].message.parsed)
    checkPick((await client.chat.completions.stream(options).finalMessage()).parsed)
  },

  async thinking() {
    const options = { model: MODEL, messages: [{ role: 'user', content: SUM }], temperature: 0 }
    const { message } = (await client.chat.completions.create(options)).choices[0]
    assert.ok(message.reasoning_content)
    const more = [...options.messages, message, { role: 'user', content: 'And 1 + 1?' }]
    assert.ok(await client.chat.completions.create({ ...options, messages: more, max_tokens: 4 }))
    const quiet = await client.chat.completions.create({ ...options, reasoning_effort: 'none' })
    assert.ok(!quiet.choices[0].message.reasoning_content)
  },

  async logprobs() {
    const answer = await client.chat.completions.create({ ...chat, logprobs: true, top_logprobs: 2, max_tokens: 4 })
    assert.ok(answer.choices[0].logprobs)
  },

  async completions() {
    const options = { model: MODEL, prompt: 'The capital of France is', temperature: 0 }
    const whole = (await client.completions.create(options)).choices[0].text
    const chunks = await all(await client.completions.create({ ...options, stream: true }))
    assert.equal(chunks.map((chunk) => chunk.choices[0]?.text ?? '').join(''), whole)
  },

  async errors() {
    await assert.rejects(client.chat.completions.create({ ...chat, model: 'gpt-4o' }), OpenAI.NotFoundError)
    const cold = client.chat.completions.create({ ...chat, temperature: -1 })
    await assert.rejects(cold, (error) => error instanceof OpenAI.BadRequestError && error.param === 'temperature')
    const long = [{ role: 'user', content: 'word '.repeat(9000) }]
    const deep = client.chat.completions.create({ ...chat, messages: long, stream: true })
    await assert.rejects(deep, (error) => error.code === 'context_length_exceeded')
  },
}

await run(cases, 'openai', 'zod')
