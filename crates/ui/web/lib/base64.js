// Bytes as text for messages. Pure.

/** The base64 of a text's UTF-8. */
export function encode(text) {
  let binary = "";
  new TextEncoder().encode(text).forEach((byte) => { binary += String.fromCharCode(byte); });
  return btoa(binary);
}

/** The bytes of a base64. */
export const decode = (data) => Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
