// Passkeys: calls the browser's authenticator (Web Authentication), and says in words what failed.
import { fromBase64, toBase64 } from "./bytes.js";
import { ApiError, send } from "./http.js";
import { t } from "./languages.js";

const IS_ADDRESS = /^[\d.]+$|^\[/.test(location.hostname);
const PROBLEMS = {
  NotAllowedError: t`No passkey was used. It was cancelled, the time ran out, or this device has none for this account.`,
  InvalidStateError: t`This device already has a passkey for your account.`,
  NotSupportedError: t`This device cannot make a passkey of a supported kind. Try another device.`,
  ConstraintError: t`This device cannot verify you. Set up its PIN, fingerprint or face first.`,
  SecurityError: t`Passkeys do not work at this address of the portal. Open its usual address.`,
};

/** The reason why this page cannot use passkeys; empty if it can. */
export function whyNot() {
  if (IS_ADDRESS) {
    const name = location.protocol === "http:" ? t`, such as localhost` : "";
    return t`Passkeys need a host name, and ${location.hostname} is an IP address. Open the portal by its name${name}.`;
  }
  return window.PublicKeyCredential ? "" : t`This browser does not support passkeys. Use a current browser, over HTTPS.`;
}

const text = (buffer) => (buffer ? toBase64(new Uint8Array(buffer)) : undefined);
const descriptor = ({ id, transports }) => ({
  type: "public-key",
  id: fromBase64(id),
  ...(transports.length ? { transports } : {}),
});

/** Calls the authenticator. Raises ApiError with status 0 and a message for the visitor. */
async function ask(work) {
  const reason = whyNot();
  if (reason) throw new ApiError(0, { message: reason });
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
    throw new ApiError(0, { message: PROBLEMS[error.name] ?? t`The passkey could not be used. Try again.` });
  }
}

/** Makes a passkey; returns the body for the service. Raises ApiError. */
export function create(begun) {
  return ask(async () => {
    const { rawId, response } = await navigator.credentials.create({
      publicKey: {
        attestation: "none",
        authenticatorSelection: { residentKey: "required", requireResidentKey: true, userVerification: "required" },
        challenge: fromBase64(begun.challenge),
        excludeCredentials: begun.credentials.map(descriptor),
        pubKeyCredParams: begun.algorithms.map((alg) => ({ type: "public-key", alg })),
        rp: { id: begun.rp_id, name: begun.rp_name },
        timeout: begun.expires_in * 1000,
        user: { id: fromBase64(begun.user_id), name: begun.user_name, displayName: begun.user_name },
      },
    });
    const key = response.getPublicKey();
    if (!key) throw new ApiError(0, { message: PROBLEMS.NotSupportedError });
    return {
      credential_id: text(rawId),
      client_data: text(response.clientDataJSON),
      authenticator_data: text(response.getAuthenticatorData()),
      public_key: text(key),
      algorithm: response.getPublicKeyAlgorithm(),
      transports: response.getTransports?.() ?? [],
    };
  });
}

/** Uses a passkey; returns the body for the service. Raises ApiError. */
export function use(begun, options = {}) {
  return ask(async () => {
    const { rawId, response } = await navigator.credentials.get({
      publicKey: {
        allowCredentials: begun.credentials.map(descriptor),
        challenge: fromBase64(begun.challenge),
        rpId: begun.rp_id,
        timeout: begun.expires_in * 1000,
        userVerification: "required",
      },
      ...options,
    });
    return {
      credential_id: text(rawId),
      client_data: text(response.clientDataJSON),
      authenticator_data: text(response.authenticatorData),
      signature: text(response.signature),
      user_handle: text(response.userHandle),
    };
  });
}

/** Begins at a path of the service, if the page can use passkeys. Raises ApiError. */
export function begin(path) {
  return ask(() => send("POST", `/api/v1/auth/passkeys/${path}`));
}

/** Signs in with a passkey. Raises ApiError. */
export async function signIn(options) {
  await send("POST", "/api/v1/auth/passkeys/sign-in", await use(await begin("begin-sign-in"), options));
}

/** Returns whether the browser can offer passkeys in the field of the e-mail address. */
export async function canAutofill() {
  return !whyNot() && Boolean(await window.PublicKeyCredential.isConditionalMediationAvailable?.());
}
