    delete r from changefeed.change_row r join @ids i on i.change_id = r.change_id;
