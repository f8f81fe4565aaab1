-- What is left of notes about the row itself says what it says now.

  update changefeed_staged set ({ids}, {payload}) = (select {new_ids}, {new_payload})
   where owner = {owner} and live = 1 and {old_is_staged};
