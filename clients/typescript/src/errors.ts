/** The errors of the client. */

/** The kind of an error. Kinds that are retried are raised when all attempts have failed. */
export type ErrorKind =
  /** An address, a credential or an option cannot be used. Nothing was sent. */
  | "configuration"
  /** 400, 405 and 422: the request is invalid. `field` often names the wrong field. */
  | "invalid-request"
  /** 401: the API key is missing, mistyped or revoked. */
  | "authentication"
  /** 403: the API key lacks the permission, or the plan or a policy does not allow it. */
  | "permission-denied"
  /** 404: the object does not exist, or the key's status does not allow the operation. */
  | "not-found"
  /** 409: the object exists already, or was changed meanwhile. */
  | "conflict"
  /** 429, retried: too many requests. */
  | "rate-limit"
  /** 500, retried. */
  | "internal"
  /** 502, retried. */
  | "bad-gateway"
  /** 503, retried. */
  | "out-of-service"
  /** 504, retried. */
  | "gateway-timeout"
  /** Retried: no connection, or one that broke during the response. */
  | "connection-failed"
  /** Retried while there is time: no response within the timeout. */
  | "deadline-exceeded"
  /** The response is not from pqkeep. A change may have been made. */
  | "malformed-response"
  /** Local decryption: the data was changed, or is for another key. */
  | "decryption"
  /** Local decryption: the data is not in the format, or was cut off. */
  | "unreadable-input"
  /** Any other status. */
  | "other";

const BY_STATUS: Readonly<Record<number, ErrorKind>> = {
  400: "invalid-request",
  401: "authentication",
  403: "permission-denied",
  404: "not-found",
  405: "invalid-request",
  409: "conflict",
  422: "invalid-request",
  429: "rate-limit",
  500: "internal",
  502: "bad-gateway",
  503: "out-of-service",
  504: "gateway-timeout",
};

const RETRIED: ReadonlySet<ErrorKind> = new Set<ErrorKind>([
  "rate-limit",
  "internal",
  "bad-gateway",
  "out-of-service",
  "gateway-timeout",
  "connection-failed",
  "deadline-exceeded",
]);

export function kindOfStatus(status: number): ErrorKind {
  return BY_STATUS[status] ?? "other";
}

export interface ErrorFields {
  readonly code?: string | undefined;
  readonly status?: number | undefined;
  readonly field?: string | undefined;
  readonly requestId?: string | undefined;
  readonly retryAfter?: number | undefined;
}

/** An error of the service, the connection or the client. It has no secret. */
export class PqkeepError extends Error {
  override readonly name = "PqkeepError";
  readonly kind: ErrorKind;
  /** The service's stable code, such as `ERR_NOT_FOUND_001`. */
  readonly code: string | undefined;
  /** The HTTP status. */
  readonly status: number | undefined;
  /** The field of the request, or of a malformed response. */
  readonly field: string | undefined;
  /** The id of all attempts of the call, which is in the service's audit log. */
  readonly requestId: string | undefined;
  /** The seconds to wait that the service asked for. */
  readonly retryAfter: number | undefined;

  constructor(kind: ErrorKind, message: string, fields: ErrorFields = {}) {
    super(message);
    this.kind = kind;
    this.code = fields.code;
    this.status = fields.status;
    this.field = fields.field;
    this.requestId = fields.requestId;
    this.retryAfter = fields.retryAfter;
  }

  /** True if the same call may succeed later. */
  get isRetryable(): boolean {
    return RETRIED.has(this.kind);
  }
}
