// oidc-provider with one client. It signs in anyone as who they say they are, and the part of their name
// before a hyphen is a group:
// node provider.mjs FOLDER ISSUER REDIRECT_URI SECRET, where the folder has node_modules.
import { pathToFileURL } from "node:url";

const [folder, issuer, redirectUri, secret] = process.argv.slice(2);
const entry = pathToFileURL(`${folder}/node_modules/oidc-provider/lib/index.js`);
const { default: Provider } = await import(entry);
const provider = new Provider(issuer, {
  clients: [{ client_id: "pqkeep", client_secret: secret, redirect_uris: [redirectUri] }],
  claims: { openid: ["sub", "auth_time"], email: ["email", "email_verified"], groups: ["groups"] },
  conformIdTokenClaims: false, // claims are in the ID token, as most providers can be set to
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, email: `${id}@example.org`, email_verified: true, groups: ["authors", id.split("-")[0]] }),
  }),
  pkce: { required: () => true },
});
const { hostname, port } = new URL(issuer);
provider.listen(Number(port), hostname);
