// Where no mail is sent, the inviter passes the invitation's link on.
document.addEventListener("answered", ({ detail }) => {
  const place = document.querySelector("[data-invitation-link]");
  if (place && detail.invitation_token) {
    place.textContent = `${location.origin}${document.body.dataset.root}/invitation#${detail.invitation_token}`;
  }
});
