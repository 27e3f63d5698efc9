// Calls the public API as the page's visitor. Asks for what is missing on the way: a step-up, or a new session.
import { refresh, signInAgain, stepUp } from "./sessions.js";

export class ApiError extends Error {
  constructor(status, error, retryAfter) {
    super(error.message ?? "The service did not answer as expected.");
    this.status = status;
    this.code = error.error_code ?? "";
    this.field = error.field ?? "";
    this.challengeToken = error.challenge_token;
    this.secondFactor = error.second_factor;
    this.retryAfter = Number(retryAfter) || 0; // seconds
  }
}

/** One request, as it is. Raises ApiError. */
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
    throw new ApiError(0, { message: "The service cannot be reached. Nothing is lost: try again." });
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) {
    throw new ApiError(response.status, answer.error ?? {}, response.headers.get("Retry-After"));
  }
  return answer.data;
}

/** One request that outlives the session. The service says what is wrong with it before it asks for a
 * step-up, and asks for none while a proof covers it. Raises ApiError. */
export async function call(method, path, body, { idempotencyKey = "" } = {}) {
  const headers = idempotencyKey ? { "Idempotency-Key": idempotencyKey } : {};
  for (;;) {
    try {
      return await send(method, path, body, headers);
    } catch (error) {
      if (error.code === "ERR_MFA_013") {
        Object.assign(headers, await stepUp());
      } else if (error.status === 401 && error.code === "ERR_AUTH_001" && !("X-API-Key" in headers)) {
        if (document.body.dataset.stepUp === "operator") Object.assign(headers, await stepUp());
        else if (!(await refresh())) await signInAgain();
      } else {
        throw error;
      }
    }
  }
}
