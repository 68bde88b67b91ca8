// Bytes as text for messages. Pure.

/** The base64 of a text's UTF-8. */
export function encode(text) {
  let binary = "";
  new TextEncoder().encode(text).forEach((byte) => { binary += String.fromCharCode(byte); });
  return btoa(binary);
}

/** The bytes of a base64. */
export function decode(data) {
  // Browsers of 2025 and later do it by themselves, which a hundred megabytes of log show.
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(data);
  const binary = atob(data);
  const out = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) out[i] = binary.charCodeAt(i);
  return out;
}
