-- The two databases that pqkeep needs on a PostgreSQL server, 15 or later, each with a role that owns
-- it and cannot connect to the other. Run as a superuser: psql -f postgresql.sql
-- Each key service has five connections, and one may stand by.
-- Give the roles passwords with \password, or none where pg_hba.conf says peer or cert.

CREATE ROLE pqkeep_gateway LOGIN CONNECTION LIMIT 50;
CREATE ROLE pqkeep_keyservice LOGIN CONNECTION LIMIT 10;

CREATE DATABASE pqkeep_accounts OWNER pqkeep_gateway;
CREATE DATABASE pqkeep_keys OWNER pqkeep_keyservice;

REVOKE CONNECT, TEMPORARY ON DATABASE pqkeep_accounts FROM PUBLIC;
REVOKE CONNECT, TEMPORARY ON DATABASE pqkeep_keys FROM PUBLIC;
