// Requests to the public API, as the page's visitor.
import { said, t } from "./languages.js";

export class ApiError extends Error {
  constructor(status, error, retryAfter) {
    super(error.message ?? t`The service sent an invalid response.`);
    this.status = status;
    this.code = error.error_code ?? "";
    this.field = error.field ?? "";
    this.challengeToken = error.challenge_token;
    this.secondFactor = error.second_factor;
    this.retryAfter = Number(retryAfter) || 0; // seconds
  }
}

/** Sends one request. Raises ApiError. */
export async function send(method, path, body, headers = {}) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: body === undefined ? headers : { "Content-Type": "application/json", ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      redirect: "error",
    });
  } catch {
    throw new ApiError(0, { message: t`The service cannot be reached. The page keeps what you typed: try again.` });
  }
  const content = await response.json().catch(() => ({}));
  if (!response.ok) {
    const error = content.error ?? {};
    throw new ApiError(response.status, { ...error, message: await said(error.message) }, response.headers.get("Retry-After"));
  }
  return content.data;
}
