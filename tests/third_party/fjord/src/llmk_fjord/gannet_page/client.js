// What the page requests. Addresses are relative, so that it works behind a path of a proxy.

/** The tokens of a text. Throws an Error with the server's reason. */
export async function tokenize(prompt, addSpecial, key, signal) {
  const headers = { "content-type": "application/json" };
  if (key) headers.authorization = `Bearer ${key}`;
  const body = JSON.stringify({ prompt, add_special_tokens: addSpecial, return_token_strs: true });
  const response = await fetch("tokenize", { method: "POST", headers, body, signal });
  if (!response.ok) throw new Error(await reasonOf(response));
  return response.json();
}

async function reasonOf(response) {
  try {
    const { error } = await response.json();
    return error?.message ?? `HTTP ${response.status}`;
  } catch {
    return `HTTP ${response.status}`;
  }
}

/** What the user reads of something thrown. */
export function explained(reason) {
  return reason instanceof Error ? reason.message : String(reason);
}
