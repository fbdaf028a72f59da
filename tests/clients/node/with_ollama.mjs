// The official `ollama` client for Node.

import assert from 'node:assert/strict'
import { Ollama } from 'ollama'
import { HELLO, MODEL, PICK, ROOT, SUM, WEATHER, WEATHER_TOOL, all, checkPick, run } from './suite.mjs'

const client = new Ollama({ host: ROOT })
const said = (content) => [{ role: 'user', content }]
const cold = { model: MODEL, options: { temperature: 0 }, think: false }
const chat = { ...cold, messages: said(HELLO) }
const textOf = (parts) => parts.map((part) => part.message?.content ?? part.response).join('')

const cases = {
  async chat() {
    const answer = await client.chat({ model: MODEL, messages: said(HELLO) })
    assert.ok(answer.message.content)
    assert.deepEqual([answer.done, answer.done_reason], [true, 'stop'])
    assert.ok(answer.eval_count > 0 && answer.prompt_eval_count > 0)
    assert.equal((await client.list()).models[0].model, `${MODEL}:latest`)
    assert.equal((await client.pull({ model: MODEL })).status, 'success')
    assert.deepEqual((await all(await client.pull({ model: MODEL, stream: true }))).map((step) => step.status), ['success'])
    assert.ok((await client.show({ model: MODEL })).capabilities.includes('tools'))
  },

  async stream_is_the_whole_answer() {
    const whole = await client.chat(chat)
    assert.equal(textOf(await all(await client.chat({ ...chat, stream: true }))), whole.message.content)
    const made = await client.generate({ ...cold, prompt: HELLO })
    assert.equal(made.response, whole.message.content)
    assert.equal(textOf(await all(await client.generate({ ...cold, prompt: HELLO, stream: true }))), made.response)
  },

  async tool_loop() {
    const ask = { ...cold, messages: said(WEATHER), tools: [WEATHER_TOOL] }
    for (const parts of [[await client.chat(ask)], await all(await client.chat({ ...ask, stream: true }))]) {
      const [call] = parts.flatMap((part) => part.message.tool_calls ?? [])
      assert.deepEqual(call.function.arguments, { city: 'Paris' })
      const result = { role: 'tool', tool_name: 'get_weather', content: 'sunny, 21 °C' }
      const messages = [...ask.messages, { role: 'assistant', content: '', tool_calls: [call] }, result]
      assert.ok((await client.chat({ ...ask, messages })).message.content.includes('21'))
    }
  },

  async structured_output() {
    checkPick((await client.chat({ ...chat, format: PICK })).message.content)
    checkPick(textOf(await all(await client.chat({ ...chat, format: PICK, stream: true }))))
  },

  async thinking() {
    const on = await client.chat({ ...cold, messages: said(SUM), think: true })
    assert.ok(on.message.thinking)
    assert.ok(on.message.content.includes('42'))
    assert.ok(!(await client.chat({ ...cold, messages: said(SUM) })).message.thinking)
  },

  async embeddings() {
    const { embeddings } = await client.embed({ model: MODEL, input: ['One text', 'Another'] })
    assert.equal(embeddings.length, 2)
    const short = await client.embed({ model: MODEL, input: 'One text', dimensions: 16 })
    assert.equal(short.embeddings[0].length, 16)
  },

  async errors() {
    await assert.rejects(client.chat({ ...chat, model: 'llama3' }), (error) => error.status_code === 404)
    const long = client.generate({ model: MODEL, prompt: 'word '.repeat(9000) })
    await assert.rejects(long, (error) => error.status_code === 400 && error.error.includes('context'))
  },
}

await run(cases, 'ollama')
