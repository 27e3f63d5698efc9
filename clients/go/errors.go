package pqkeep

import (
	"strconv"
	"strings"
	"time"
)

// A Kind is a kind of error. Test for it with errors.Is:
//
//	if errors.Is(err, pqkeep.ErrNotFound) { … }
//
// A kind can belong to another: each ErrDecryption is an ErrInvalidRequest too.
type Kind string

// The kinds of errors, and the codes of the service that have them.
const (
	// ErrConfiguration: the address, credential or CA file cannot be used. Nothing was sent.
	ErrConfiguration Kind = "ConfigurationError"
	// ErrInvalidRequest: ERR_INVALID_001, and every 400, 405 and 422 without a kind.
	ErrInvalidRequest Kind = "InvalidRequestError"
	// ErrEncryptionInput: ERR_KEM_001. It is an ErrInvalidRequest.
	ErrEncryptionInput Kind = "EncryptionInputError"
	// ErrDecryption: ERR_KEM_002 and ERR_KEM_006, malformed, or for another key. It is an
	// ErrInvalidRequest.
	ErrDecryption Kind = "DecryptionError"
	// ErrWrappingInput: ERR_KEM_010. It is an ErrInvalidRequest.
	ErrWrappingInput Kind = "WrappingInputError"
	// ErrUnwrappingInput: ERR_KEM_011. It is an ErrInvalidRequest.
	ErrUnwrappingInput Kind = "UnwrappingInputError"
	// ErrUnwrapping: ERR_KEM_012, modified, or for another key. It is an ErrInvalidRequest.
	ErrUnwrapping Kind = "UnwrappingError"
	// ErrSignatureInput: ERR_SIG_001. It is an ErrInvalidRequest.
	ErrSignatureInput Kind = "SignatureInputError"
	// ErrMessageTooLarge: ERR_SIG_002. It is an ErrInvalidRequest.
	ErrMessageTooLarge Kind = "MessageTooLargeError"
	// ErrHashAlgorithm: ERR_SIG_010. It is an ErrInvalidRequest.
	ErrHashAlgorithm Kind = "HashAlgorithmError"
	// ErrHashLength: ERR_SIG_011. It is an ErrInvalidRequest.
	ErrHashLength Kind = "HashLengthError"
	// ErrInvalidMode: ERR_KEM_007. It is an ErrInvalidRequest.
	ErrInvalidMode Kind = "InvalidModeError"
	// ErrInvalidSalt: ERR_INVALID_002. It is an ErrInvalidRequest.
	ErrInvalidSalt Kind = "InvalidSaltError"
	// ErrUnreadableInput: data in an unknown form. Nothing was sent. It is an ErrInvalidRequest.
	ErrUnreadableInput Kind = "UnreadableInputError"
	// ErrAuthentication: ERR_AUTH_001, and every 401.
	ErrAuthentication Kind = "AuthenticationError"
	// ErrPermissionDenied: ERR_FORBIDDEN_001, and every 403 without a kind.
	ErrPermissionDenied Kind = "PermissionDeniedError"
	// ErrPolicyDenied: ERR_POLICY_001, not in the plan, or the quota is used up. It is an
	// ErrPermissionDenied.
	ErrPolicyDenied Kind = "PolicyDeniedError"
	// ErrNotFound: ERR_NOT_FOUND_001, and every 404.
	ErrNotFound Kind = "NotFoundError"
	// ErrConflict: ERR_CONFLICT_001, and every 409.
	ErrConflict Kind = "ConflictError"
	// ErrRateLimit: ERR_RATE_LIMIT_001, and every 429. It is returned after all retries.
	ErrRateLimit Kind = "RateLimitError"
	// ErrMalformedResponse: a response that pqkeep did not send. A change may have been made.
	ErrMalformedResponse Kind = "MalformedResponseError"
	// ErrUnavailable: the service is not available now. A change may have been made. The kinds
	// below are ErrUnavailable. They are returned after all retries.
	ErrUnavailable Kind = "UnavailableError"
	// ErrInternal: ERR_INTERNAL_001, ERR_CRYPTO_001, and every 500.
	ErrInternal Kind = "InternalError"
	// ErrBadGateway: ERR_BAD_GATEWAY_001, and every 502.
	ErrBadGateway Kind = "BadGatewayError"
	// ErrOutOfService: ERR_SERVICE_001, and every 503.
	ErrOutOfService Kind = "OutOfServiceError"
	// ErrGatewayTimeout: ERR_TIMEOUT_001, and every 504.
	ErrGatewayTimeout Kind = "GatewayTimeoutError"
	// ErrConnectionFailed: no connection, or one that broke during the response.
	ErrConnectionFailed Kind = "ConnectionFailedError"
	// ErrDeadlineExceeded: no response before the deadline.
	ErrDeadlineExceeded Kind = "DeadlineExceededError"
	// ErrCanceled: the caller's context was canceled. The error is context.Canceled too.
	ErrCanceled Kind = "CanceledError"
	// ErrOther: an error response with another status.
	ErrOther Kind = "PqkeepError"
)

// Error returns the name of the kind.
func (k Kind) Error() string { return string(k) }

var families = map[Kind]Kind{
	ErrEncryptionInput: ErrInvalidRequest, ErrDecryption: ErrInvalidRequest,
	ErrWrappingInput: ErrInvalidRequest, ErrUnwrappingInput: ErrInvalidRequest,
	ErrUnwrapping: ErrInvalidRequest, ErrSignatureInput: ErrInvalidRequest,
	ErrMessageTooLarge: ErrInvalidRequest, ErrHashAlgorithm: ErrInvalidRequest,
	ErrHashLength: ErrInvalidRequest, ErrInvalidMode: ErrInvalidRequest,
	ErrInvalidSalt: ErrInvalidRequest, ErrUnreadableInput: ErrInvalidRequest,
	ErrPolicyDenied: ErrPermissionDenied,
	ErrInternal:     ErrUnavailable, ErrBadGateway: ErrUnavailable, ErrOutOfService: ErrUnavailable,
	ErrGatewayTimeout: ErrUnavailable, ErrConnectionFailed: ErrUnavailable,
	ErrDeadlineExceeded: ErrUnavailable,
}

var kindsByCode = map[string]Kind{
	"ERR_INVALID_002": ErrInvalidSalt,
	"ERR_KEM_001":     ErrEncryptionInput, "ERR_KEM_002": ErrDecryption, "ERR_KEM_006": ErrDecryption,
	"ERR_KEM_007": ErrInvalidMode, "ERR_KEM_010": ErrWrappingInput, "ERR_KEM_011": ErrUnwrappingInput,
	"ERR_KEM_012": ErrUnwrapping, "ERR_SIG_001": ErrSignatureInput, "ERR_SIG_002": ErrMessageTooLarge,
	"ERR_SIG_010": ErrHashAlgorithm, "ERR_SIG_011": ErrHashLength, "ERR_POLICY_001": ErrPolicyDenied,
}

var kindsByStatus = map[int]Kind{
	400: ErrInvalidRequest, 401: ErrAuthentication, 403: ErrPermissionDenied, 404: ErrNotFound,
	405: ErrInvalidRequest, 409: ErrConflict, 422: ErrInvalidRequest, 429: ErrRateLimit,
	500: ErrInternal, 502: ErrBadGateway, 503: ErrOutOfService, 504: ErrGatewayTimeout,
}

var kindsOfItems = map[string]Kind{
	"ERR_INVALID_001": ErrInvalidRequest, "ERR_AUTH_001": ErrAuthentication,
	"ERR_FORBIDDEN_001": ErrPermissionDenied, "ERR_NOT_FOUND_001": ErrNotFound,
	"ERR_CONFLICT_001": ErrConflict, "ERR_RATE_LIMIT_001": ErrRateLimit,
	"ERR_INTERNAL_001": ErrInternal, "ERR_BAD_GATEWAY_001": ErrBadGateway,
	"ERR_SERVICE_001": ErrOutOfService, "ERR_TIMEOUT_001": ErrGatewayTimeout,
}

func (k Kind) isRetried() bool { return k == ErrRateLimit || families[k] == ErrUnavailable }

// An Error is any failure of the service, the connection or the client. It has no API key, no
// plaintext and no secret.
type Error struct {
	Kind Kind
	// Code is the service's stable code, such as ERR_NOT_FOUND_001, or empty.
	Code string
	// Message is for people.
	Message string
	// Field is the request's or the response's wrong field, or empty.
	Field string
	// Status is the status of the response, or 0.
	Status int
	// RequestID is in the service's audit log. All attempts of a call have the same.
	RequestID string
	// RetryAfter is the time that the service asked to wait, or nil.
	RetryAfter *time.Duration

	cause error
}

// Error returns the message with code, field and request id.
func (e *Error) Error() string {
	details := []string{}
	if e.Code != "" {
		details = append(details, e.Code)
	} else if e.Status != 0 {
		details = append(details, "HTTP "+strconv.Itoa(e.Status))
	}
	if e.Field != "" {
		details = append(details, e.Field)
	}
	if e.RequestID != "" {
		details = append(details, "request "+e.RequestID)
	}
	if len(details) == 0 {
		return "pqkeep: " + e.Message
	}
	return "pqkeep: " + e.Message + " (" + strings.Join(details, ", ") + ")"
}

// Is returns true for the error's kind, and for the kind that this one belongs to.
func (e *Error) Is(target error) bool {
	kind, isKind := target.(Kind)
	return isKind && (e.Kind == kind || families[e.Kind] == kind)
}

// Unwrap returns the context's error if the context ended the call, or nil.
func (e *Error) Unwrap() error { return e.cause }

func configurationError(message string) *Error {
	return &Error{Kind: ErrConfiguration, Message: message}
}

func malformed(message, field string) *Error {
	return &Error{Kind: ErrMalformedResponse, Message: message, Field: field}
}

func damaged(message string) *Error { return &Error{Kind: ErrDecryption, Message: message} }

func unreadable(message string) *Error { return &Error{Kind: ErrUnreadableInput, Message: message} }
