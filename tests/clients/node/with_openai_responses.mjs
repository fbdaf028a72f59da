// The Responses API and embeddings by the official `openai` client for Node.

import assert from 'node:assert/strict'
import OpenAI from 'openai'
import { zodResponsesFunction, zodTextFormat } from 'openai/helpers/zod'
import { z } from 'zod'
import { HELLO, MODEL, SUM, URL, WEATHER, WEATHER_TOOL, all, checkPick, run } from './suite.mjs'

const client = new OpenAI({ baseURL: URL, apiKey: 'none' })
const chat = { model: MODEL, input: HELLO }
const cold = { ...chat, temperature: 0, reasoning: { effort: 'none' } }
const short = { ...cold, max_output_tokens: 300 }
const ask = { ...cold, input: WEATHER, tools: [{ type: 'function', ...WEATHER_TOOL.function, strict: false }] }
const Pick = z.object({ number: z.union([z.literal(1), z.literal(2), z.literal(3)]), sure: z.boolean() })

const callsOf = (response) => response.output.filter((item) => item.type === 'function_call')

const cases = {
  async chat() {
    const answer = await client.responses.create({ ...chat, instructions: 'Be brief.' })
    assert.equal(answer.status, 'completed')
    assert.ok(answer.output_text)
    const { input_tokens, output_tokens, total_tokens } = answer.usage
    assert.equal(input_tokens + output_tokens, total_tokens)
    const counted = await client.responses.inputTokens.count({ ...chat, instructions: 'Be brief.' })
    assert.equal(counted.input_tokens, input_tokens)
  },

  async stream_is_the_whole_answer() {
    const whole = await client.responses.create(cold)
    const events = await all(await client.responses.create({ ...cold, stream: true }))
    assert.deepEqual(events.map((event) => event.sequence_number), [...events.keys()])
    assert.equal(events.at(-1).type, 'response.completed')
    const deltas = events.filter((event) => event.type === 'response.output_text.delta')
    assert.equal(deltas.map((event) => event.delta).join(''), whole.output_text)
    assert.equal((await client.responses.stream(cold).finalResponse()).output_text, whole.output_text)
  },

  async tool_loop() {
    for (const answer of [await client.responses.create(ask), await client.responses.stream(ask).finalResponse()]) {
      const [call] = callsOf(answer)
      assert.deepEqual(JSON.parse(call.arguments), { city: 'Paris' })
      const output = { type: 'function_call_output', call_id: call.call_id, output: '21 degrees' }
      const stored = await client.responses.create({ ...ask, input: [output], previous_response_id: answer.id })
      const input = [{ role: 'user', content: WEATHER }, ...answer.output, output]
      assert.equal((await client.responses.create({ ...ask, input })).output_text, stored.output_text)
    }
  },

  async required_named_and_strict_tools() {
    const tools = [zodResponsesFunction({ name: 'pick', parameters: Pick })]
    for (const tool_choice of ['required', { type: 'function', name: 'pick' }]) {
      const options = { ...short, tools, tool_choice, parallel_tool_calls: false }
      const made = [await client.responses.parse(options), await client.responses.stream(options).finalResponse()]
      for (const answer of made) {
        assert.equal(callsOf(answer).length, 1)
        checkPick(callsOf(answer)[0].parsed_arguments)
      }
    }
  },

  async structured_output() {
    const options = { ...short, text: { format: zodTextFormat(Pick, 'pick') } }
    checkPick((await client.responses.parse(options)).output_parsed)
    checkPick((await client.responses.stream(options).finalResponse()).output_parsed)
  },

  async thinking() {
    const input = [{ role: 'user', content: SUM }]
    const include = ['reasoning.encrypted_content']
    const answer = await client.responses.create({ model: MODEL, input, temperature: 0, include, store: false })
    assert.equal(answer.output[0].type, 'reasoning')
    const more = [...input, ...answer.output, { role: 'user', content: 'And 1 + 1?' }]
    assert.ok(await client.responses.create({ ...short, input: more, max_output_tokens: 16 }))
  },

  async what_is_stored() {
    const first = await client.responses.create(cold)
    assert.equal((await client.responses.retrieve(first.id)).output_text, first.output_text)
    const talk = await client.conversations.create({})
    await client.responses.create({ ...cold, conversation: talk.id })
    assert.equal((await all(await client.conversations.items.list(talk.id))).length, 2)
    await client.responses.delete(first.id)
    await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError)
  },

  async in_the_background() {
    let answer = await client.responses.create({ ...cold, background: true })
    while (['queued', 'in_progress'].includes(answer.status)) {
      await new Promise((resolve) => setTimeout(resolve, 50))
      answer = await client.responses.retrieve(answer.id)
    }
    assert.equal(answer.status, 'completed')
  },

  async embeddings() {
    const input = ['Where is Paris?', 'Bread is made of flour.']
    const packed = await client.embeddings.create({ model: MODEL, input }) // base64, which the client decodes
    const plain = await client.embeddings.create({ model: MODEL, input, encoding_format: 'float' })
    for (const [at, { embedding }] of packed.data.entries()) {
      assert.ok(embedding.every((value, place) => Math.abs(value - plain.data[at].embedding[place]) < 2e-3))
    }
    const [small] = (await client.embeddings.create({ model: MODEL, input: input[0], dimensions: 16 })).data
    assert.equal(small.embedding.length, 16)
  },

  async errors() {
    await assert.rejects(client.responses.create({ ...chat, model: 'gpt-4o' }), OpenAI.NotFoundError)
    for (const [param, bad] of [
      ['temperature', { temperature: -1 }],
      ['tools[0].type', { tools: [{ type: 'web_search' }] }],
      ['truncation', { truncation: 'auto' }],
    ]) {
      await assert.rejects(client.responses.create({ ...chat, ...bad }), (error) => error.param === param)
    }
    const long = client.responses.create({ ...chat, input: 'word '.repeat(9000), stream: true })
    await assert.rejects(long, (error) => error.code === 'context_length_exceeded')
  },
}

await run(cases, 'openai', 'zod')
