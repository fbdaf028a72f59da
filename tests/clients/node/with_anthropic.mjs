// The official `@anthropic-ai/sdk` client.

import assert from 'node:assert/strict'
import Anthropic from '@anthropic-ai/sdk'
import { betaZodTool } from '@anthropic-ai/sdk/helpers/beta/zod'
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod'
import { z } from 'zod'
import { HELLO, MODEL, PICK, ROOT, SUM, WEATHER, WEATHER_TOOL, all, checkPick, run } from './suite.mjs'

const client = new Anthropic({ baseURL: ROOT, apiKey: 'none' })
const said = (text) => [{ role: 'user', content: text }]
const cold = { model: MODEL, max_tokens: 400, temperature: 0 }
const chat = { ...cold, messages: said(HELLO) }
const { name, description, parameters } = WEATHER_TOOL.function
const ask = { ...cold, messages: said(WEATHER), tools: [{ name, description, input_schema: parameters }] }
const pick = { name: 'pick', description: 'Picks a number.', input_schema: PICK, strict: true }
const thinking = { type: 'enabled', budget_tokens: 1024 }
const Pick = z.object({ number: z.union([z.literal(1), z.literal(2), z.literal(3)]), sure: z.boolean() })

const textOf = (message) => message.content.map((block) => block.text ?? '').join('')
const callsOf = (message) => message.content.filter((block) => block.type === 'tool_use')
const both = async (options) => [
  await client.messages.create(options),
  await client.messages.stream(options).finalMessage(),
]

const cases = {
  async chat() {
    const message = await client.messages.create({ model: MODEL, max_tokens: 400, messages: said(HELLO), system: 'Be brief.' })
    assert.deepEqual([message.type, message.role, message.model], ['message', 'assistant', MODEL])
    assert.equal(message.stop_reason, 'end_turn')
    assert.ok(textOf(message))
    assert.ok(message.usage.output_tokens > 0)
    assert.equal(message.id, `msg_${message._request_id}`)
    assert.equal((await client.models.list()).data[0].id, MODEL)
  },

  async stream_is_the_whole_answer() {
    const whole = await client.messages.create(chat)
    const stream = client.messages.stream(chat)
    let text = ''
    stream.on('text', (piece) => (text += piece))
    const message = await stream.finalMessage()
    assert.equal(text, textOf(whole))
    assert.equal(textOf(message), textOf(whole))
    assert.equal(message.usage.output_tokens, whole.usage.output_tokens)
    const kinds = (await all(await client.messages.create({ ...chat, stream: true }))).map((event) => event.type)
    assert.equal(kinds[0], 'message_start')
    assert.deepEqual(kinds.slice(-2), ['message_delta', 'message_stop'])
  },

  async tool_loop() {
    for (const more of [{}, { thinking }]) {
      for (const message of await both({ ...ask, ...more })) {
        assert.equal(message.stop_reason, 'tool_use')
        const [call] = callsOf(message)
        assert.deepEqual([call.name, call.input], ['get_weather', { city: 'Paris' }])
        const result = { type: 'tool_result', tool_use_id: call.id, content: 'sunny, 21 °C' }
        const messages = [...ask.messages, { role: 'assistant', content: message.content }, { role: 'user', content: [result] }]
        assert.ok(textOf(await client.messages.create({ ...ask, ...more, messages })).includes('21'))
      }
    }
  },

  async tool_runner() {
    for (const stream of [false, true]) {
      const cities = []
      const weather = betaZodTool({
        name: 'get_weather',
        description,
        inputSchema: z.object({ city: z.string().describe('The city') }),
        run: ({ city }) => {
          cities.push(city)
          return 'sunny, 21 °C'
        },
      })
      const options = { ...cold, messages: said(WEATHER), tools: [weather], max_iterations: 3, stream }
      const last = await client.beta.messages.toolRunner(options).runUntilDone()
      assert.deepEqual(cities, ['Paris'])
      assert.equal(last.stop_reason, 'end_turn')
    }
  },

  async required_named_and_strict_tools() {
    for (const type of ['any', 'tool']) {
      const tool_choice = { type, ...(type === 'tool' ? { name: 'pick' } : {}), disable_parallel_tool_use: true }
      for (const message of await both({ ...chat, tools: [pick], tool_choice })) {
        assert.equal(message.stop_reason, 'tool_use')
        assert.equal(callsOf(message).length, 1)
        checkPick(callsOf(message)[0].input)
      }
    }
    const quiet = await client.messages.create({ ...ask, tool_choice: { type: 'none' } })
    assert.equal(callsOf(quiet).length, 0)
  },

  async structured_output() {
    const options = { ...chat, output_config: { format: zodOutputFormat(Pick) } }
    checkPick((await client.messages.parse(options)).parsed_output)
    checkPick((await client.messages.stream(options).finalMessage()).parsed_output)
    const format = { type: 'json_schema', schema: PICK }
    checkPick(textOf(await client.messages.create({ ...chat, output_config: { format } })))
  },

  async thinking() {
    const options = { ...cold, messages: said(SUM) }
    for (const message of await both({ ...options, thinking })) {
      assert.deepEqual(message.content.map((block) => block.type), ['thinking', 'text'])
      assert.ok(message.content[0].thinking && message.content[0].signature)
      const messages = [...said(SUM), { role: 'assistant', content: message.content }, ...said(HELLO)]
      assert.ok(await client.messages.create({ ...cold, messages, thinking }))
    }
    const quiet = await client.messages.create({ ...options, thinking: { type: 'disabled' } })
    assert.deepEqual(quiet.content.map((block) => block.type), ['text'])
    for (const effort of ['low', 'high', 'max']) {
      assert.ok(await client.messages.create({ ...options, thinking: { type: 'adaptive' }, output_config: { effort } }))
    }
  },

  async tokens_are_counted() {
    const { temperature, max_tokens, ...counted } = ask
    const { input_tokens } = await client.messages.countTokens(counted)
    const { usage } = await client.messages.create(ask)
    assert.equal(usage.input_tokens + usage.cache_read_input_tokens, input_tokens)
  },

  async what_agents_send() {
    const cache_control = { type: 'ephemeral' }
    const message = await client.beta.messages.create({
      ...ask,
      model: 'claude-sonnet-4-5',
      max_tokens: 32000,
      system: [{ type: 'text', text: 'You are an agent.', cache_control }],
      tools: [{ ...ask.tools[0], cache_control }],
      thinking: { type: 'adaptive' },
      metadata: { user_id: 'u' },
      betas: ['interleaved-thinking-2025-05-14'],
      stream: false,
    }, { timeout: 60_000 })
    assert.equal(message.model, MODEL)
  },

  async errors() {
    await assert.rejects(client.messages.create({ ...chat, model: 'gpt-5' }), Anthropic.NotFoundError)
    const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'aGk=' } }
    for (const [why, bad] of [
      ['vision', { messages: [{ role: 'user', content: [image] }] }],
      ['temperature', { temperature: -1 }],
      ['web_search', { tools: [{ type: 'web_search_20250305', name: 'web_search' }] }],
      ['context', { messages: said('word '.repeat(9000)) }],
      ['context', { messages: said('word '.repeat(9000)), stream: true }],
    ]) {
      await assert.rejects(
        client.messages.create({ ...chat, ...bad }),
        (error) => error instanceof Anthropic.BadRequestError && error.message.includes(why),
      )
    }
  },
}

await run(cases, '@anthropic-ai/sdk', 'zod')
