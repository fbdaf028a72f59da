// What the suites of all Node clients have in common.

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'

export const ROOT = process.env.LLMK_URL ?? 'http://127.0.0.1:8000'
export const URL = `${ROOT}/v1`
export const MODEL = process.env.LLMK_MODEL ?? 'demo'
export const HELLO = 'Hello! Who are you?'
export const SUM = 'What is 17 + 25?'
export const WEATHER = 'What is the weather in Paris?'

export const PICK = {
  type: 'object',
  properties: { number: { type: 'integer', enum: [1, 2, 3] }, sure: { type: 'boolean' } },
  required: ['number', 'sure'],
  additionalProperties: false,
}
export const WEATHER_TOOL = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'Tells the current weather of a city.',
    parameters: {
      type: 'object',
      properties: { city: { type: 'string', description: 'The city' } },
      required: ['city'],
    },
  },
}

export function checkPick(picked) {
  const value = typeof picked === 'string' ? JSON.parse(picked) : picked
  assert.deepEqual(Object.keys(value).sort(), ['number', 'sure'])
  assert.ok([1, 2, 3].includes(value.number))
  assert.equal(typeof value.sure, 'boolean')
}

// Everything that a stream or a list of pages yields.
export async function all(stream) {
  const found = []
  for await (const entry of stream) found.push(entry)
  return found
}

// Runs every case, and prints the outcomes as JSON: of each case null, or what failed.
export async function run(cases, ...packages) {
  const wanted = process.argv.slice(2)
  const outcomes = {}
  for (const [name, check] of Object.entries(cases)) {
    if (wanted.length && !wanted.includes(name)) continue
    try {
      await check()
      outcomes[name] = null
    } catch (error) {
      outcomes[name] = String(error?.stack ?? error).slice(0, 4000)
    }
  }
  const versions = {}
  for (const name of packages) {
    const manifest = new globalThis.URL(`./node_modules/${name}/package.json`, import.meta.url)
    versions[name] = JSON.parse(readFileSync(manifest)).version
  }
  console.log('\n' + JSON.stringify({ versions, outcomes }))
  process.exit(0)
}
